// Cholesky by the textbook's loops, one entry after another: the order of summation that
// attention/cholesky.hpp promises, to the bit.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/types.hpp"

namespace reference {

using kvbench::Index;
using kvbench::MatrixD;

/// U of a = U'U, zero below the diagonal; `positive` false where a pivot is not.
inline MatrixD cholesky(const MatrixD& a, bool& positive) {
  const Index n = a.rows();
  MatrixD u(n, n);
  std::fill_n(u.data(), n * n, 0.0);
  positive = true;
  for (Index i = 0; i < n && positive; ++i) {
    for (Index j = i; j < n; ++j) {
      double x = a.row(i)[j];
      for (Index t = 0; t < i; ++t) {
        x = std::fma(-u.row(t)[i], u.row(t)[j], x);
      }
      positive = positive && (j > i || x > 0.0);
      u.row(i)[j] = j == i ? std::sqrt(x) : x / u.row(i)[i];
    }
  }
  return u;
}

/// U'^-1 b, column by column.
inline MatrixD solved_lower(const MatrixD& u, const MatrixD& b) {
  MatrixD x = b;
  for (Index c = 0; c < b.cols(); ++c) {
    for (Index i = 0; i < b.rows(); ++i) {
      for (Index t = 0; t < i; ++t) {
        x.row(i)[c] = std::fma(-u.row(t)[i], x.row(t)[c], x.row(i)[c]);
      }
      x.row(i)[c] /= u.row(i)[i];
    }
  }
  return x;
}

/// (U'U)^-1 b.
inline MatrixD solved(const MatrixD& u, const MatrixD& b) {
  MatrixD x = solved_lower(u, b);
  for (Index c = 0; c < b.cols(); ++c) {
    for (Index i = b.rows() - 1; i >= 0; --i) {
      for (Index t = b.rows() - 1; t > i; --t) {
        x.row(i)[c] = std::fma(-u.row(i)[t], x.row(t)[c], x.row(i)[c]);
      }
      x.row(i)[c] /= u.row(i)[i];
    }
  }
  return x;
}

}  // namespace reference
