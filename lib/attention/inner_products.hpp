// Inner products in a fixed order of summation: one FMA per channel, t = 0, 1, ... Selections
// depend on them, so they must not depend on the instruction set, the blocking or the device. A GPU
// thread that loops over t computes the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

inline constexpr Index kTokenSlab = 256;  ///< rows that one chain of a weighted sum covers

/// out[i, j] = sum_t a[i, t] * b[j, t], t ascending, one FMA each, from 0.
/// a [na, d], b_t [d, nb] (b transposed), out [na, nb]. With `upper`, entries j < i are
/// unspecified. Time O(na nb d).
template <class T>
void inner_products(const BasicMatrix<T>& a, const BasicMatrix<T>& b_t, BasicMatrix<T>& out,
                    bool upper = false);
extern template void inner_products(const MatrixD&, const MatrixD&, MatrixD&, bool);
extern template void inner_products(const Matrix&, const Matrix&, Matrix&, bool);

/// out [w, w] += sum_i x_i x_i' over the rows x_i of `rows` [., w]; `out` symmetric. Within each
/// kTokenSlab rows one FMA each in T, rows ascending; these sums are added in order in float64.
template <class T>
void add_gram(MatrixView rows, MatrixD& out);
extern template void add_gram<float>(MatrixView, MatrixD&);
extern template void add_gram<double>(MatrixView, MatrixD&);

/// sum_t a[t] b[t] in float64, t ascending, one FMA each, from 0. `b` has as many elements as `a`.
/// Products of float32 elements neither overflow nor vanish.
inline double inner_product(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    sum = std::fma(static_cast<double>(a[t]), static_cast<double>(b[t]), sum);
  }
  return sum;
}

inline double squared_norm(std::span<const float> x) {
  return inner_product(x, x);
}

/// Subtracts the rows' mean from each row, in place, in float64. Zero rows up to `padded` rows
/// count in the mean. Returns the mean [cols], 0 of no rows.
template <class T>
std::vector<double> center_rows(BasicMatrix<T>& rows, Index padded = 0);
extern template std::vector<double> center_rows(MatrixD&, Index);
extern template std::vector<double> center_rows(Matrix&, Index);

/// [cols]: mean of the rows `tokens` of `m`, 0 of no rows. float64, in their order.
std::vector<double> mean_row(MatrixView m, std::span<const Index> tokens);

/// out [cols, rows] = m [rows, cols] transposed.
template <class T>
void transpose(const BasicMatrix<T>& m, BasicMatrix<T>& out);
extern template void transpose(const MatrixD&, MatrixD&);
extern template void transpose(const Matrix&, Matrix&);

/// out = rows `tokens` of `m`.
template <class T>
void gather_rows(MatrixView m, std::span<const Index> tokens, BasicMatrix<T>& out);
extern template void gather_rows(MatrixView, std::span<const Index>, MatrixD&);
extern template void gather_rows(MatrixView, std::span<const Index>, Matrix&);

}  // namespace kvbench
