#include "attention/inner_products.hpp"

#include <cmath>

namespace kvbench {
namespace {

// 6 x 8 accumulators: twelve of AVX2's sixteen registers, six of AVX-512's.
constexpr Index kRows = 6;
constexpr Index kCols = 8;

template <Index R>
void tile(const double* a, Index lda, const double* b_t, Index ldb, Index d, double* out,
          Index ldo) {
  double acc[R][kCols] = {};
  for (Index t = 0; t < d; ++t) {
    const double* b = b_t + t * ldb;
    for (Index r = 0; r < R; ++r) {
      const double x = a[r * lda + t];
#pragma omp simd
      for (Index c = 0; c < kCols; ++c) {
        acc[r][c] = std::fma(x, b[c], acc[r][c]);
      }
    }
  }
  for (Index r = 0; r < R; ++r) {
    for (Index c = 0; c < kCols; ++c) {
      out[r * ldo + c] = acc[r][c];
    }
  }
}

}  // namespace

void inner_products(const MatrixD& a, const MatrixD& b_t, MatrixD& out, bool upper) {
  const Index na = a.rows();
  const Index nb = b_t.cols();
  const Index d = a.cols();
  out.resize(na, nb);
  const Index whole_cols = nb - nb % kCols;
  for (Index i = 0; i < na; i += kRows) {
    const Index rows = std::min(kRows, na - i);
    const Index first = upper ? i - i % kCols : 0;
    for (Index j = first; j < whole_cols; j += kCols) {
      const double* ai = a.row(i);
      const double* bj = b_t.data() + j;
      double* o = out.row(i) + j;
      if (rows == kRows) {
        tile<kRows>(ai, d, bj, nb, d, o, nb);
      } else {
        for (Index r = 0; r < rows; ++r) {
          tile<1>(ai + r * d, d, bj, nb, d, o + r * nb, nb);
        }
      }
    }
    for (Index j = whole_cols; j < nb; ++j) {
      for (Index r = 0; r < rows; ++r) {
        double acc = 0.0;
        for (Index t = 0; t < d; ++t) {
          acc = std::fma(a.row(i + r)[t], b_t.row(t)[j], acc);
        }
        out.row(i + r)[j] = acc;
      }
    }
  }
}

std::vector<double> center_rows(MatrixD& rows) {
  const Index d = rows.cols();
  std::vector<double> mean(d, 0.0);
  for (Index i = 0; i < rows.rows(); ++i) {
    for (Index t = 0; t < d; ++t) {
      mean[t] += rows.row(i)[t];
    }
  }
  for (double& x : mean) {
    x /= static_cast<double>(std::max<Index>(1, rows.rows()));
  }
  for (Index i = 0; i < rows.rows(); ++i) {
    for (Index t = 0; t < d; ++t) {
      rows.row(i)[t] -= mean[t];
    }
  }
  return mean;
}

void transpose(const MatrixD& m, MatrixD& out) {
  out.resize(m.cols(), m.rows());
  for (Index i = 0; i < m.rows(); ++i) {
    const double* row = m.row(i);
    for (Index j = 0; j < m.cols(); ++j) {
      out.row(j)[i] = row[j];
    }
  }
}

void gather_rows(MatrixView m, std::span<const Index> tokens, MatrixD& out) {
  out.resize(static_cast<Index>(tokens.size()), m.cols);
  for (Index i = 0; i < out.rows(); ++i) {
    const float* from = m.row(tokens[i]);
    double* to = out.row(i);
    for (Index t = 0; t < m.cols; ++t) {
      to[t] = static_cast<double>(from[t]);
    }
  }
}

}  // namespace kvbench
