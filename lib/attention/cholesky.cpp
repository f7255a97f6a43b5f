#include "attention/cholesky.hpp"

#include <algorithm>
#include <cmath>

#include "attention/product_tile.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr Index kTileRows = Tile<Isa::avx2>::kRows;
constexpr Index kPanelCols = Tile<Isa::avx2>::kCols<double>;
// Rows of U that are subtracted from the rest of the matrix together. Their packed panels fit the
// second-level cache, one panel the first.
constexpr Index kPanelRows = 64;
static_assert(kPanelRows % kTileRows == 0 && kPanelCols % kTileRows == 0);

// to -= factor from.
void subtract(double factor, const double* from, Index n, double* to) {
  add(-factor, from, n, to);
}

void divide(double by, Index n, double* x) {
#pragma omp simd
  for (Index c = 0; c < n; ++c) {
    x[c] /= by;
  }
}

// Rows [i, i + R) of U'^-1 x [., kPanelCols], in place, after those above. U begins at row and
// column `begin` of u.
template <Index R>
void solve_rows_lower(const MatrixD& u, Index begin, Index i, double* x) {
  const auto entry = [&](Index t, Index j) { return u.row(begin + t)[begin + j]; };
  double tile[R][kPanelCols];
  std::copy_n(x + i * kPanelCols, R * kPanelCols, tile[0]);
  add_products([&](Index r, Index t) { return -entry(t, i + r); },
               [&](Index t) { return x + t * kPanelCols; }, i, tile);
  for (Index r = 0; r < R; ++r) {
    for (Index t = 0; t < r; ++t) {
      subtract(entry(i + t, i + r), tile[t], kPanelCols, tile[r]);
    }
    divide(entry(i + r, i + r), kPanelCols, tile[r]);
  }
  std::copy_n(tile[0], R * kPanelCols, x + i * kPanelCols);
}

// Rows [begin, end) of U. Rows before `begin` are already subtracted.
bool factor_rows(MatrixD& a, Index begin, Index end) {
  const Index n = a.cols();
  for (Index i = begin; i < end; ++i) {
    // Within the block's square. The rest of the rows follows in tiles.
    for (Index t = begin; t < i; ++t) {
      subtract(a.row(t)[i], a.row(t) + i, end - i, a.row(i) + i);
    }
    const double pivot = a.row(i)[i];
    if (!(pivot > 0.0) || !std::isfinite(pivot)) {
      return false;
    }
    const double root = std::sqrt(pivot);
    a.row(i)[i] = root;
    divide(root, end - i - 1, a.row(i) + i + 1);
  }
  AlignedVector<double> panel(end == n ? 0 : kPanelRows * kPanelCols, 0.0);
  for (Index j = end; j < n; j += kPanelCols) {
    const Index cols = std::min(kPanelCols, n - j);
    for (Index t = begin; t < end; ++t) {
      std::copy_n(a.row(t) + j, cols, panel.data() + (t - begin) * kPanelCols);
    }
    for (Index i = 0; i < kPanelRows; i += kTileRows) {
      solve_rows_lower<kTileRows>(a, begin, i, panel.data());
    }
    for (Index t = begin; t < end; ++t) {
      std::copy_n(panel.data() + (t - begin) * kPanelCols, cols, a.row(t) + j);
    }
  }
  return true;
}

// Subtracts the products of rows [begin, end) of U from the rest of the matrix. `panels`: scratch
// for these rows, in groups of kPanelCols columns.
void subtract_rows(MatrixD& a, Index begin, Index end, AlignedVector<double>& panels) {
  const Index n = a.cols();
  const Index depth = end - begin;
  panels.assign((n - end + kPanelCols - 1) / kPanelCols * kPanelCols * depth, 0.0);
  for (Index j = end; j < n; j += kPanelCols) {
    for (Index t = 0; t < depth; ++t) {
      std::copy_n(a.row(begin + t) + j, std::min(kPanelCols, n - j),
                  panels.data() + (j - end) * depth + t * kPanelCols);
    }
  }
  for (Index i = end; i < n; i += kTileRows) {
    const Index rows = std::min(kTileRows, n - i);
    const Index first = i - (i - end) % kPanelCols;
    const double* left = panels.data() + (first - end) * depth + (i - first);
    for (Index j = first; j < n; j += kPanelCols) {
      const Index cols = std::min(kPanelCols, n - j);
      const double* right = panels.data() + (j - end) * depth;
      double tile[kTileRows][kPanelCols] = {};
      for (Index r = 0; r < rows; ++r) {
        std::copy_n(a.row(i + r) + j, cols, tile[r]);
      }
      add_products([&](Index r, Index t) { return -left[t * kPanelCols + r]; },
                   [&](Index t) { return right + t * kPanelCols; }, depth, tile);
      for (Index r = 0; r < rows; ++r) {
        std::copy_n(tile[r], cols, a.row(i + r) + j);
      }
    }
  }
}

// Rows [i, i + R) of U^-1 x, in place, after those below.
template <Index R>
void solve_rows_upper(const MatrixD& u, Index i, double* x) {
  const Index last = u.rows() - 1;
  double tile[R][kPanelCols];
  std::copy_n(x + i * kPanelCols, R * kPanelCols, tile[0]);
  add_products([&](Index r, Index t) { return -u.row(i + r)[last - t]; },
               [&](Index t) { return x + (last - t) * kPanelCols; }, u.rows() - i - R, tile);
  for (Index r = R; r-- > 0;) {
    for (Index t = R - 1; t > r; --t) {
      subtract(u.row(i + r)[i + t], tile[t], kPanelCols, tile[r]);
    }
    divide(u.row(i + r)[i + r], kPanelCols, tile[r]);
  }
  std::copy_n(tile[0], R * kPanelCols, x + i * kPanelCols);
}

void solve_panels(const MatrixD& u, MatrixD& x, bool upper) {
  const Index n = u.rows();
  const Index whole = n - n % kTileRows;
  AlignedVector<double> panel(n * kPanelCols, 0.0);
  for (Index j = 0; j < x.cols(); j += kPanelCols) {
    const Index cols = std::min(kPanelCols, x.cols() - j);
    for (Index i = 0; i < n; ++i) {
      std::copy_n(x.row(i) + j, cols, panel.data() + i * kPanelCols);
    }
    for (Index i = 0; i < whole; i += kTileRows) {
      solve_rows_lower<kTileRows>(u, 0, i, panel.data());
    }
    for (Index i = whole; i < n; ++i) {
      solve_rows_lower<1>(u, 0, i, panel.data());
    }
    for (Index i = n; upper && i-- > whole;) {
      solve_rows_upper<1>(u, i, panel.data());
    }
    for (Index i = whole; upper && i > 0; i -= kTileRows) {
      solve_rows_upper<kTileRows>(u, i - kTileRows, panel.data());
    }
    for (Index i = 0; i < n; ++i) {
      std::copy_n(panel.data() + i * kPanelCols, cols, x.row(i) + j);
    }
  }
}

}  // namespace

bool factor_cholesky(MatrixD& a) {
  AlignedVector<double> panels;
  for (Index begin = 0; begin < a.rows(); begin += kPanelRows) {
    const Index end = std::min(a.rows(), begin + kPanelRows);
    if (!factor_rows(a, begin, end)) {
      return false;
    }
    subtract_rows(a, begin, end, panels);
  }
  return true;
}

void solve_lower(const MatrixD& u, MatrixD& x) {
  solve_panels(u, x, false);
}

void solve_cholesky(const MatrixD& u, MatrixD& x) {
  solve_panels(u, x, true);
}

void solve_cholesky(const MatrixD& u, std::span<double> x) {
  const Index n = u.rows();
  for (Index t = 0; t < n; ++t) {
    x[t] /= u.row(t)[t];
    subtract(x[t], u.row(t) + t + 1, n - t - 1, x.data() + t + 1);
  }
  for (Index end = n; end > 0;) {
    const Index begin = std::max<Index>(0, end - kTileRows);  // independent chains
    for (Index t = n - 1; t >= end; --t) {
      for (Index i = begin; i < end; ++i) {
        x[i] = std::fma(-u.row(i)[t], x[t], x[i]);
      }
    }
    for (Index t = end - 1; t >= begin; --t) {
      x[t] /= u.row(t)[t];
      for (Index i = begin; i < t; ++i) {
        x[i] = std::fma(-u.row(i)[t], x[t], x[i]);
      }
    }
    end = begin;
  }
}

}  // namespace kvbench
