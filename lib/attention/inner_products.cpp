#include "attention/inner_products.hpp"

#include <algorithm>
#include <cmath>

#include "attention/product_tile.hpp"

namespace kvbench {
namespace {

// With kTileCols, sums take 12 of AVX2's 16 registers, or of AVX-512's 32.
constexpr Index kRows = 6;
constexpr Index kDepth = 256;  // channels at a time; a packed panel fits the first-level cache
// Packing costs more than it saves for fewer rows: a packed column serves one tile of rows at a
// time.
constexpr Index kRowsToPack = 4 * kRows;

// out [R, cols] += the products over `depth` channels; `first`: = instead. b [depth, kTileCols].
template <Index R, class T>
void tile(const T* a, Index lda, const T* b, Index ldb, Index depth, T* out, Index ldo, Index cols,
          bool first) {
  T acc[R][kTileCols<T>] = {};
  if (!first) {
    for (Index r = 0; r < R; ++r) {
      std::copy_n(out + r * ldo, cols, acc[r]);
    }
  }
  add_products([&](Index r, Index t) { return a[r * lda + t]; },
               [&](Index t) { return b + t * ldb; }, depth, acc);
  for (Index r = 0; r < R; ++r) {
    std::copy_n(acc[r], cols, out + r * ldo);
  }
}

}  // namespace

template <class T>
void add_gram(MatrixView rows, MatrixD& out) {
  constexpr Index kWidth = kTileCols<T>;
  const Index w = rows.cols;
  const Index stride = (w + kWidth - 1) / kWidth * kWidth;
  AlignedVector<T> slab(kTokenSlab * stride, T{0});
  AlignedVector<T> panel(kTokenSlab * kWidth);
  for (Index begin = 0; begin < rows.rows; begin += kTokenSlab) {
    const Index count = std::min(kTokenSlab, rows.rows - begin);
    for (Index i = 0; i < count; ++i) {
      std::copy_n(rows.row(begin + i), w, slab.data() + i * stride);
    }
    for (Index c = 0; c < w; c += kWidth) {
      // Packed, columns that are read w / kTileRows times do not evict each other.
      for (Index t = 0; t < count; ++t) {
        std::copy_n(slab.data() + t * stride + c, kWidth, panel.data() + t * kWidth);
      }
      for (Index r = 0; r < std::min(w, c + kWidth); r += kTileRows) {
        T sum[kTileRows][kWidth] = {};
        add_products([&](Index i, Index t) { return slab[t * stride + r + i]; },
                     [&](Index t) { return panel.data() + t * kWidth; }, count, sum);
        for (Index i = r; i < std::min(w, r + kTileRows); ++i) {
          for (Index j = std::max(i, c); j < std::min(w, c + kWidth); ++j) {
            out.row(i)[j] += static_cast<double>(sum[i - r][j - c]);
          }
        }
      }
    }
  }
  for (Index i = 1; i < w; ++i) {
    for (Index j = 0; j < i; ++j) {
      out.row(i)[j] = out.row(j)[i];
    }
  }
}

template void add_gram<float>(MatrixView, MatrixD&);
template void add_gram<double>(MatrixView, MatrixD&);

template <class T>
void inner_products(const BasicMatrix<T>& a, const BasicMatrix<T>& b_t, BasicMatrix<T>& out,
                    bool upper) {
  constexpr Index kWidth = kTileCols<T>;
  const Index na = a.rows();
  const Index nb = b_t.cols();
  const Index d = a.cols();
  out.resize(na, nb);
  if (d == 0) {
    std::fill_n(out.data(), na * nb, T{0});
  }
  thread_local BasicMatrix<T> panel;
  panel.resize(kDepth, kWidth);
  for (Index t0 = 0; t0 < d; t0 += kDepth) {
    const Index depth = std::min(kDepth, d - t0);
    for (Index j = 0; j < nb; j += kWidth) {
      const Index cols = std::min(kWidth, nb - j);
      const T* b = b_t.row(t0) + j;
      Index ldb = nb;
      // Packed because rows of b_t a power of two apart share a few cache sets.
      if (na >= kRowsToPack || cols < kWidth) {
        for (Index t = 0; t < depth; ++t) {
          std::copy_n(b + t * nb, cols, panel.row(t));
          std::fill(panel.row(t) + cols, panel.row(t) + kWidth, T{0});
        }
        b = panel.data();
        ldb = kWidth;
      }
      const Index end = upper ? std::min(na, j + cols) : na;
      for (Index i = 0; i < end; i += kRows) {
        const T* ai = a.row(i) + t0;
        T* o = out.row(i) + j;
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

template void inner_products(const MatrixD&, const MatrixD&, MatrixD&, bool);
template void inner_products(const Matrix&, const Matrix&, Matrix&, bool);

template <class T>
std::vector<double> center_rows(BasicMatrix<T>& rows) {
  const Index d = rows.cols();
  std::vector<double> mean(d, 0.0);
  for (Index i = 0; i < rows.rows(); ++i) {
    for (Index t = 0; t < d; ++t) {
      mean[t] += static_cast<double>(rows.row(i)[t]);
    }
  }
  for (double& x : mean) {
    x /= static_cast<double>(std::max<Index>(1, rows.rows()));
  }
  for (Index i = 0; i < rows.rows(); ++i) {
    T* row = rows.row(i);
    for (Index t = 0; t < d; ++t) {
      row[t] = static_cast<T>(static_cast<double>(row[t]) - mean[t]);
    }
  }
  return mean;
}

template std::vector<double> center_rows(MatrixD&);
template std::vector<double> center_rows(Matrix&);

template <class T>
void transpose(const BasicMatrix<T>& m, BasicMatrix<T>& out) {
  // One cache line: columns whose elements lie a power of two apart evict each other.
  constexpr Index kSide = 64 / sizeof(T);
  out.resize(m.cols(), m.rows());
  const Index whole = m.rows() - m.rows() % kSide;
  for (Index i = 0; i < whole; i += kSide) {
    const T* from = m.row(i);
    for (Index j = 0; j < m.cols(); ++j) {
      T* to = out.row(j) + i;
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

template void transpose(const MatrixD&, MatrixD&);
template void transpose(const Matrix&, Matrix&);

template <class T>
void gather_rows(MatrixView m, std::span<const Index> tokens, BasicMatrix<T>& out) {
  out.resize(static_cast<Index>(tokens.size()), m.cols);
  for (Index i = 0; i < out.rows(); ++i) {
    const float* from = m.row(tokens[i]);
    T* to = out.row(i);
    for (Index t = 0; t < m.cols; ++t) {
      to[t] = static_cast<T>(from[t]);
    }
  }
}

template void gather_rows(MatrixView, std::span<const Index>, MatrixD&);
template void gather_rows(MatrixView, std::span<const Index>, Matrix&);

}  // namespace kvbench
