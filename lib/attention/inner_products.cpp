#include "attention/inner_products.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/product_tile.hpp"
#include "core/shared_work.hpp"

namespace kvbench {
namespace {

// With a tile's columns, sums take 12 of AVX2's 16 registers, or of AVX-512's 32.
constexpr Index kRows = 6;
constexpr Index kDepth = 256;  // channels at a time; a packed panel fits the first-level cache
// Packing costs more than it saves for fewer rows: a packed column serves one tile of rows at a
// time.
constexpr Index kRowsToPack = 4 * kRows;
// A thread starts in the time of some 1e6 multiply-adds.
constexpr Index kWorthSharing = Index{1} << 24;
constexpr Index kSharedCols = 128;  // columns of a part

// out [R, cols] += the products over `depth` channels; `first`: = instead. b [depth, C].
template <Index R, Index C, class T>
[[gnu::always_inline]] inline void tile(const T* a, Index lda, const T* b, Index ldb, Index depth,
                                        T* out, Index ldo, Index cols, bool first) {
  T acc[R][C] = {};
  if (!first) {
    for (Index r = 0; r < R; ++r) {
      for (Index c = 0; c < cols; ++c) {
        acc[r][c] = out[r * ldo + c];
      }
    }
  }
  add_products([&](Index r, Index t) { return a[r * lda + t]; },
               [&](Index t) { return b + t * ldb; }, depth, acc);
  if (cols == C) {
    for (Index r = 0; r < R; ++r) {
      for (Index c = 0; c < C; ++c) {
        out[r * ldo + c] = acc[r][c];
      }
    }
    return;
  }
  for (Index r = 0; r < R; ++r) {
    for (Index c = 0; c < cols; ++c) {
      out[r * ldo + c] = acc[r][c];
    }
  }
}

// Kernels of run_kernel.

struct Products {
  // Columns `which` of out [na, nb] = a [na, d] times b_t [d, nb]; `upper`: out[i][j] with j < i is
  // unspecified. `panel`: scratch, [kDepth, a tile's columns].
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* a, const T* b_t, Index na, Index nb,
                                         Index d, Range which, bool upper, T* panel, T* out) {
    constexpr Index kWidth = Tile::template kCols<T>;
    for (Index t0 = 0; t0 < d; t0 += kDepth) {
      const Index depth = std::min(kDepth, d - t0);
      for (Index j = which.begin; j < which.end; j += kWidth) {
        const Index cols = std::min(kWidth, which.end - j);
        const T* b = b_t + t0 * nb + j;
        Index ldb = nb;
        // Packed because rows of b_t a power of two apart share a few cache sets.
        if (na >= kRowsToPack || cols < kWidth) {
          for (Index t = 0; t < depth; ++t) {
            for (Index c = 0; c < cols; ++c) {
              panel[t * kWidth + c] = b[t * nb + c];
            }
            for (Index c = cols; c < kWidth; ++c) {
              panel[t * kWidth + c] = T{0};
            }
          }
          b = panel;
          ldb = kWidth;
        }
        const Index end = upper ? std::min(na, j + cols) : na;
        for (Index i = 0; i < end; i += kRows) {
          const T* ai = a + i * d + t0;
          T* o = out + i * nb + j;
          if (na - i >= kRows) {
            tile<kRows, kWidth>(ai, d, b, ldb, depth, o, nb, cols, t0 == 0);
          } else {
            for (Index r = 0; r < na - i; ++r) {
              tile<1, kWidth>(ai + r * d, d, b, ldb, depth, o + r * nb, nb, cols, t0 == 0);
            }
          }
        }
      }
    }
  }
};

struct Gram {
  // The upper triangle of out [w, w] += products of the columns of slab [count, stride], stride a
  // multiple of a tile's columns. `panel`: scratch, [kTokenSlab, a tile's columns].
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* slab, Index count, Index w, Index stride,
                                         T* panel, double* out) {
    constexpr Index kWidth = Tile::template kCols<T>;
    for (Index c = 0; c < w; c += kWidth) {
      // Packed, columns that are read w / Tile::kRows times do not evict each other.
      for (Index t = 0; t < count; ++t) {
        for (Index j = 0; j < kWidth; ++j) {
          panel[t * kWidth + j] = slab[t * stride + c + j];
        }
      }
      for (Index r = 0; r < std::min(w, c + kWidth); r += Tile::kRows) {
        T sum[Tile::kRows][kWidth] = {};
        add_products([&](Index i, Index t) { return slab[t * stride + r + i]; },
                     [&](Index t) { return panel + t * kWidth; }, count, sum);
        for (Index i = r; i < std::min(w, r + Tile::kRows); ++i) {
          for (Index j = std::max(i, c); j < std::min(w, c + kWidth); ++j) {
            out[i * w + j] += static_cast<double>(sum[i - r][j - c]);
          }
        }
      }
    }
  }
};

}  // namespace

template <class T>
void add_gram(MatrixView rows, MatrixD& out) {
  constexpr Index kWidth = kMostTileCols<T>;
  const Index w = rows.cols;
  const Index stride = (w + kWidth - 1) / kWidth * kWidth;
  AlignedVector<T> slab(kTokenSlab * stride, T{0});
  AlignedVector<T> panel(kTokenSlab * kWidth);
  for (Index begin = 0; begin < rows.rows; begin += kTokenSlab) {
    const Index count = std::min(kTokenSlab, rows.rows - begin);
    for (Index i = 0; i < count; ++i) {
      std::copy_n(rows.row(begin + i), w, slab.data() + i * stride);
    }
    run_kernel<Gram>(std::as_const(slab).data(), count, w, stride, panel.data(), out.data());
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
  const Index na = a.rows();
  const Index nb = b_t.cols();
  const Index d = a.cols();
  out.resize(na, nb);
  if (d == 0) {
    std::fill_n(out.data(), na * nb, T{0});
  }
  const auto columns = [&](Range which) {
    thread_local BasicMatrix<T> panel;
    panel.resize(kDepth, kMostTileCols<T>);
    run_kernel<Products>(a.data(), b_t.data(), na, nb, d, which, upper, panel.data(), out.data());
  };
  if (na * nb * d < kWorthSharing) {
    columns({0, nb});
    return;
  }
  share_work((nb + kSharedCols - 1) / kSharedCols, [&](Index part) {
    columns({part * kSharedCols, std::min(nb, (part + 1) * kSharedCols)});
  });
}

template void inner_products(const MatrixD&, const MatrixD&, MatrixD&, bool);
template void inner_products(const Matrix&, const Matrix&, Matrix&, bool);

template <class T>
std::vector<double> center_rows(BasicMatrix<T>& rows, Index padded) {
  const Index d = rows.cols();
  std::vector<double> mean(d, 0.0);
  for (Index i = 0; i < rows.rows(); ++i) {
    for (Index t = 0; t < d; ++t) {
      mean[t] += static_cast<double>(rows.row(i)[t]);
    }
  }
  for (double& x : mean) {
    x /= static_cast<double>(std::max({Index{1}, rows.rows(), padded}));
  }
  for (Index i = 0; i < rows.rows(); ++i) {
    T* row = rows.row(i);
    for (Index t = 0; t < d; ++t) {
      row[t] = static_cast<T>(static_cast<double>(row[t]) - mean[t]);
    }
  }
  return mean;
}

template std::vector<double> center_rows(MatrixD&, Index);
template std::vector<double> center_rows(Matrix&, Index);

std::vector<double> mean_row(MatrixView m, std::span<const Index> tokens) {
  std::vector<double> mean(m.cols, 0.0);
  for (const Index i : tokens) {
    const float* row = m.row(i);
    for (Index t = 0; t < m.cols; ++t) {
      mean[t] += static_cast<double>(row[t]);
    }
  }
  for (double& x : mean) {
    x /= static_cast<double>(std::max<std::size_t>(1, tokens.size()));
  }
  return mean;
}

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
