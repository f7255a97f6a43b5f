#include "attention/value_norms.hpp"

#include <algorithm>
#include <cmath>

#include "attention/inner_products.hpp"
#include "attention/largest_eigenvalue.hpp"

namespace kvbench {
namespace {

constexpr Index kNormBlock = 32;  // queries whose norms one thread follows

// gram += v v'.
void add_value(MatrixView values, Index position, MatrixD& gram) {
  const float* v = values.row(position);
  for (Index t = 0; t < gram.rows(); ++t) {
    double* row = gram.row(t);
    const auto x = static_cast<double>(v[t]);
#pragma omp simd
    for (Index u = 0; u < gram.cols(); ++u) {
      row[u] = std::fma(x, static_cast<double>(v[u]), row[u]);
    }
  }
}

}  // namespace

ValueNorms value_norms(const KvHead& head, Index m, int threads) {
  const Index before = head.n() - m;
  const MatrixView values = head.v.view();
  MatrixD seen_by_all(head.dv(), head.dv());
  add_gram(values.slice({0, before}), head.precision, seen_by_all);
  ValueNorms out;
  out.frobenius.resize(m);
  out.spectral.resize(m);
  const Index blocks = (m + kNormBlock - 1) / kNormBlock;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    MatrixD gram = seen_by_all;
    for (Index r = 0; r < b * kNormBlock; ++r) {
      add_value(values, before + r, gram);
    }
    LargestEigenvalue largest_eigenvalue;
    for (Index r = b * kNormBlock; r < std::min(m, (b + 1) * kNormBlock); ++r) {
      add_value(values, before + r, gram);
      double trace = 0.0;
      for (Index t = 0; t < gram.rows(); ++t) {
        trace += gram.row(t)[t];
      }
      const auto at = static_cast<std::size_t>(r);
      out.frobenius[at] = std::sqrt(trace);
      out.spectral[at] = std::sqrt(largest_eigenvalue(gram));
    }
  }
  return out;
}

}  // namespace kvbench
