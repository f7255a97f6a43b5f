#include "attention/value_norms.hpp"

#include <algorithm>
#include <cmath>

#include "attention/inner_products.hpp"
#include "attention/largest_eigenvalue.hpp"

namespace kvbench {
namespace {

constexpr Index kNormBlock = 32;  // queries whose norms one thread follows

// gram += sign v v'.
void add_value(MatrixView values, Index position, MatrixD& gram, double sign = 1.0) {
  const float* v = values.row(position);
  for (Index t = 0; t < gram.rows(); ++t) {
    double* row = gram.row(t);
    const double x = sign * static_cast<double>(v[t]);
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
  // What the query before the first one saw.
  const Index first = before > 0 ? head.visible(before - 1).begin : 0;
  MatrixD seen_before(head.dv(), head.dv());
  add_gram(values.slice({first, before}), head.precision, seen_before);
  // From one query to the next: its own value comes, and what the window loses goes.
  const auto advance = [&](Index position, MatrixD& gram) {
    add_value(values, position, gram);
    const bool loses =
        position > 0 && head.visible(position).begin > head.visible(position - 1).begin;
    if (loses) {
      add_value(values, head.visible(position - 1).begin, gram, -1.0);
    }
    return loses;
  };
  ValueNorms out;
  out.frobenius.resize(m);
  out.spectral.resize(m);
  const Index blocks = (m + kNormBlock - 1) / kNormBlock;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    MatrixD gram = seen_before;
    for (Index r = 0; r < b * kNormBlock; ++r) {
      advance(before + r, gram);
    }
    LargestEigenvalue largest_eigenvalue;
    for (Index r = b * kNormBlock; r < std::min(m, (b + 1) * kNormBlock); ++r) {
      if (advance(before + r, gram)) {
        largest_eigenvalue = {};  // it follows what only grows
      }
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
