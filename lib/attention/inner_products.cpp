#include "attention/inner_products.hpp"

#include <algorithm>
#include <cmath>

#include "attention/product_tile.hpp"

namespace kvbench {
namespace {

// Accumulators in registers: 6 x 8 are twelve of AVX2's sixteen, 6 x 16 twelve of AVX-512's
// thirty-two. No sum depends on either.
#if defined(__AVX512F__)
constexpr Index kCols = 16;
#else
constexpr Index kCols = 8;
#endif
constexpr Index kRows = 6;
constexpr Index kDepth = 256;  // channels at a time: a packed panel stays in the first-level cache
// Fewer rows than this do not pay for packing: each packed column serves one tile of rows a time.
constexpr Index kRowsToPack = 4 * kRows;

// out [R, cols] += the products over `depth` channels; `first`: = instead. b [depth, kCols].
template <Index R>
void tile(const double* a, Index lda, const double* b, Index ldb, Index depth, double* out,
          Index ldo, Index cols, bool first) {
  double acc[R][kCols] = {};
  if (!first) {
    for (Index r = 0; r < R; ++r) {
      std::copy_n(out + r * ldo, cols, acc[r]);
    }
  }
  for (Index t = 0; t < depth; ++t) {
    const double* bt = b + t * ldb;
    for (Index r = 0; r < R; ++r) {
      const double x = a[r * lda + t];
#pragma omp simd
      for (Index c = 0; c < kCols; ++c) {
        acc[r][c] = std::fma(x, bt[c], acc[r][c]);
      }
    }
  }
  for (Index r = 0; r < R; ++r) {
    std::copy_n(acc[r], cols, out + r * ldo);
  }
}

template <class T>
void add_gram_in(MatrixView rows, MatrixD& out) {
  constexpr Index kWidth = kTileCols<T>;
  const Index w = rows.cols;
  const Index stride = (w + kWidth - 1) / kWidth * kWidth;
  AlignedVector<T> slab(kTokenSlab * stride, T{0});
  for (Index begin = 0; begin < rows.rows; begin += kTokenSlab) {
    const Index count = std::min(kTokenSlab, rows.rows - begin);
    for (Index i = 0; i < count; ++i) {
      std::copy_n(rows.row(begin + i), w, slab.data() + i * stride);
    }
    for (Index c = 0; c < w; c += kWidth) {
      for (Index r = 0; r < std::min(w, c + kWidth); r += kTileRows) {
        T sum[kTileRows][kWidth] = {};
        add_products([&](Index i, Index t) { return slab[t * stride + r + i]; },
                     [&](Index t) { return slab.data() + t * stride + c; }, count, sum);
        for (Index i = r; i < std::min(w, r + kTileRows); ++i) {
          for (Index j = std::max(i, c); j < std::min(w, c + kWidth); ++j) {
            out.row(i)[j] += static_cast<double>(sum[i - r][j - c]);
            out.row(j)[i] = out.row(i)[j];
          }
        }
      }
    }
  }
}

}  // namespace

void add_gram(MatrixView rows, Precision precision, MatrixD& out) {
  if (precision == Precision::float32) {
    add_gram_in<float>(rows, out);
  } else {
    add_gram_in<double>(rows, out);
  }
}

void inner_products(const MatrixD& a, const MatrixD& b_t, MatrixD& out, bool upper) {
  const Index na = a.rows();
  const Index nb = b_t.cols();
  const Index d = a.cols();
  out.resize(na, nb);
  if (d == 0) {
    std::fill_n(out.data(), na * nb, 0.0);
  }
  thread_local MatrixD panel;
  panel.resize(kDepth, kCols);
  for (Index t0 = 0; t0 < d; t0 += kDepth) {
    const Index depth = std::min(kDepth, d - t0);
    for (Index j = 0; j < nb; j += kCols) {
      const Index cols = std::min(kCols, nb - j);
      const double* b = b_t.row(t0) + j;
      Index ldb = nb;
      // Rows of b_t a power of two apart share a few sets of the cache.
      if (na >= kRowsToPack || cols < kCols) {
        for (Index t = 0; t < depth; ++t) {
          std::copy_n(b + t * nb, cols, panel.row(t));
          std::fill(panel.row(t) + cols, panel.row(t) + kCols, 0.0);
        }
        b = panel.data();
        ldb = kCols;
      }
      const Index end = upper ? std::min(na, j + cols) : na;
      for (Index i = 0; i < end; i += kRows) {
        const double* ai = a.row(i) + t0;
        double* o = out.row(i) + j;
        if (na - i >= kRows) {
          tile<kRows>(ai, d, b, ldb, depth, o, nb, cols, t0 == 0);
        } else {
          for (Index r = 0; r < na - i; ++r) {
            tile<1>(ai + r * d, d, b, ldb, depth, o + r * nb, nb, cols, t0 == 0);
          }
        }
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
  // A cache line's width: columns whose elements lie a power of two apart evict each other.
  constexpr Index kSide = 8;
  out.resize(m.cols(), m.rows());
  const Index whole = m.rows() - m.rows() % kSide;
  for (Index i = 0; i < whole; i += kSide) {
    const double* from = m.row(i);
    for (Index j = 0; j < m.cols(); ++j) {
      double* to = out.row(j) + i;
      for (Index r = 0; r < kSide; ++r) {
        to[r] = from[r * m.cols() + j];
      }
    }
  }
  for (Index i = whole; i < m.rows(); ++i) {
    for (Index j = 0; j < m.cols(); ++j) {
      out.row(j)[i] = m.row(i)[j];
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
