// Inner products whose order of summation is fixed: sum over the channels t = 0, 1, ... by one FMA
// each. Selections are made from these, so they must not depend on the instruction set, the
// blocking, or the device; a GPU thread that loops over t gets the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Row-major matrix [rows, cols], for what selections are computed from.
template <class T>
class Numbers {
 public:
  Numbers() = default;
  Numbers(Index rows, Index cols) : rows_(rows), cols_(cols), data_(rows * cols) {}

  /// New shape, contents unspecified; memory is kept, so that scratch need not be allocated anew.
  void resize(Index rows, Index cols) {
    rows_ = rows;
    cols_ = cols;
    data_.resize(rows * cols);
  }

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  T* row(Index i) { return data_.data() + i * cols_; }
  const T* row(Index i) const { return data_.data() + i * cols_; }

 private:
  Index rows_ = 0;
  Index cols_ = 0;
  AlignedVector<T> data_;
};

using MatrixD = Numbers<double>;
using MatrixF = Numbers<float>;

inline constexpr Index kTokenSlab = 256;  ///< rows that one chain of a weighted sum goes over

/// out[i, j] = sum_t a[i, t] * b[j, t], t ascending, one FMA each, from 0.
/// a [na, d], b_t [d, nb] (b transposed), out [na, nb]. With `upper`, only entries j >= i are
/// needed and the others may hold anything. Time O(na nb d). float32 (attention/screen.hpp) or
/// float64.
template <class T>
void inner_products(const Numbers<T>& a, const Numbers<T>& b_t, Numbers<T>& out,
                    bool upper = false);
extern template void inner_products(const MatrixD&, const MatrixD&, MatrixD&, bool);
extern template void inner_products(const MatrixF&, const MatrixF&, MatrixF&, bool);

/// out [w, w] += sum_i x_i x_i' over the rows x_i of `rows` [., w]; `out` symmetric. Within each
/// kTokenSlab rows one FMA each in `precision`, rows ascending; these sums in order in float64.
void add_gram(MatrixView rows, Precision precision, MatrixD& out);

/// sum_t a[t] b[t] of as many elements each, in float64, t ascending, one FMA each, from 0. float32
/// elements: neither overflows nor vanishes.
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

/// Subtracts the rows' mean from each row, in place. The mean [cols]; of no rows: 0.
std::vector<double> center_rows(MatrixD& rows);

/// out [cols, rows] = m [rows, cols] transposed.
template <class T>
void transpose(const Numbers<T>& m, Numbers<T>& out);
extern template void transpose(const MatrixD&, MatrixD&);
extern template void transpose(const MatrixF&, MatrixF&);

/// out = rows `tokens` of `m`.
template <class T>
void gather_rows(MatrixView m, std::span<const Index> tokens, Numbers<T>& out);
extern template void gather_rows(MatrixView, std::span<const Index>, MatrixD&);
extern template void gather_rows(MatrixView, std::span<const Index>, MatrixF&);

}  // namespace kvbench
