// The threads that carry out the steps of a stream together: one thread on the CPU, the threads of
// a block on a GPU (gpu/team.cuh). Steps are written once, against this interface, so both compute
// the same numbers and make the same decisions.
//
// Every member of a team calls every function, with equal arguments. On return all members see all
// writes made before and during the call, and all have the same result.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/math.hpp"
#include "core/types.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {

/// Columns of a panel. A matrix [d, columns] that changes by columns is stored as panels [., d,
/// kPanel]: neighbouring columns lie together, for vectors and for the lanes of a warp.
inline constexpr Index kPanel = 32;

/// Offset of row t of a column in panels.
KVB_HD constexpr Index in_panels(Index column, Index t, Index d) {
  return (column / kPanel * d + t) * kPanel + column % kPanel;
}

/// `columns` rounded up to whole panels.
KVB_HD constexpr Index whole_panels(Index columns) {
  return (columns + kPanel - 1) / kPanel * kPanel;
}

inline constexpr Index kMaxTileRows = 6;

/// Calls tile(first, R) for rows [first, first + R) until all `count` rows are done. R in
/// [1, kMaxTileRows] is a std::integral_constant.
template <class Tile>
KVB_HD void in_row_tiles(Index count, const Tile& tile) {
  const Index tiles = (count + kMaxTileRows - 1) / kMaxTileRows;
  for (Index i = 0, first = 0; i < tiles; ++i) {
    const Index rows = (count - first) / (tiles - i);
    switch (rows) {
      case 1: tile(first, std::integral_constant<int, 1>()); break;
      case 2: tile(first, std::integral_constant<int, 2>()); break;
      case 3: tile(first, std::integral_constant<int, 3>()); break;
      case 4: tile(first, std::integral_constant<int, 4>()); break;
      case 5: tile(first, std::integral_constant<int, 5>()); break;
      default: tile(first, std::integral_constant<int, 6>()); break;
    }
    first += rows;
  }
}

/// A value and its index; -1: not found.
struct Found {
  double value = 0.0;
  Index index = -1;
};

/// The result of a search, and how many values it computed.
struct Searched {
  Found found;
  Index evaluated = 0;
};

/// One thread.
class OneThread {
 public:
  /// Calls f(i) for each i in [0, n), in any order, each on one member. No call may read what
  /// another writes.
  template <class F>
  KVB_HD void each(Index n, const F& f) const {
#pragma omp simd
    for (Index i = 0; i < n; ++i) {
      f(i);
    }
  }

  /// Calls f() on one member.
  template <class F>
  KVB_HD void once(const F& f) const {
    f();
  }

  /// The largest value(i), i in [0, n); of equal ones the lowest i. NaN is never found.
  template <class Value>
  KVB_HD Found largest(Index n, const Value& value) const {
    Found best;
    for (Index i = 0; i < n; ++i) {
      const double x = value(i);
      if (best.index < 0 ? x == x : x > best.value) {
        best = {x, i};
      }
    }
    return best;
  }

  /// The smallest value(i), i in [0, n); of equal ones the lowest i. NaN is never found.
  template <class Value>
  KVB_HD Found smallest(Index n, const Value& value) const {
    Found best;
    for (Index i = 0; i < n; ++i) {
      const double x = value(i);
      if (best.index < 0 ? x == x : x < best.value) {
        best = {x, i};
      }
    }
    return best;
  }

  /// The sum of value(i), i in [0, n), in the lanes of core/vector_sums.hpp: the same bits on every
  /// team.
  template <class Value>
  KVB_HD double sum(Index n, const Value& value) const {
    double lane[kSumLanes] = {};
    Index i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) {
#pragma omp simd
      for (Index l = 0; l < kSumLanes; ++l) {
        lane[l] += static_cast<double>(value(i + l));
      }
    }
    for (Index l = 0; i + l < n; ++l) {
      lane[l] += static_cast<double>(value(i + l));
    }
    return joined_lanes(lane);
  }

  /// The smallest value(i), i in [0, n), n > 0; of equal ones that of the lowest tie(i), which is
  /// in [0, 2^31). bound(i) <= value(i); values that the bound rules out are not computed. No value
  /// may be NaN.
  template <class Bound, class Value, class Tie>
  KVB_HD Searched smallest_bounded(Index n, const Bound& bound, const Value& value,
                                   const Tie& tie) const {
    const Index first = smallest(n, bound).index;
    Searched best{{value(first), first}, 1};
    for (Index i = 0; i < n; ++i) {
      if (i == best.found.index || bound(i) > best.found.value) {
        continue;
      }
      const double x = value(i);
      ++best.evaluated;
      const double smallest = best.found.value;
      if (x != smallest ? x < smallest : tie(i) < tie(best.found.index)) {
        best.found = {x, i};
      }
    }
    return best;
  }

  /// out = the i in [0, n) with is(i), in any order; returns their number.
  template <class Is>
  KVB_HD Index collect(Index n, const Is& is, Index* out) const {
    Index count = 0;
    for (Index i = 0; i < n; ++i) {
      if (is(i)) {
        out[count++] = i;
      }
    }
    return count;
  }

  /// The largest value(i), i in [0, n), in its own type; -inf if n is 0. No value may be NaN.
  template <class Value>
  KVB_HD auto max(Index n, const Value& value) const {
    using T = decltype(value(n));
    T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
    for (Index i = 0; i < n; ++i) {
      const T x = value(i);
      largest = x > largest ? x : largest;
    }
    return largest;
  }

  /// out[r] = the sum of value(r, i), i in [0, n), in the order of `sum`, for each r in [0, rows).
  template <class Value>
  KVB_HD void sums(Index rows, Index n, const Value& value, double* out) const {
    for (Index r = 0; r < rows; ++r) {
      out[r] = sum(n, [&](Index i) { return value(r, i); });
    }
  }

  /// out[r, c] = sum over t in [0, d) of rows[r, t] * column c of the panels, ascending, one FMA
  /// each in T, from 0. rows [count, d], c in [0, columns), out [count, stride]; further columns,
  /// to the end of the last panel, may be written too. stride >= whole_panels(columns).
  template <class T, class Column>
  KVB_HD void products(const T* rows, Index count, const Column* panels, Index columns, Index d,
                       T* out, Index stride) const {
    in_row_tiles(count, [&](Index first, auto tile_rows) {
      constexpr Index kTogether = tile_columns<T>(tile_rows);
      constexpr Index kPanels = kTogether > kPanel ? kTogether / kPanel : 1;
      const T* own = rows + first * d;
      T* to = out + first * stride;
      Index c = 0;
      for (; c + kPanels * kPanel <= columns; c += kPanels * kPanel) {
        panel_products<tile_rows, kPanels>(own, panels + c * d, d, to + c, stride);
      }
      for (; c < columns; c += kPanel) {
        panel_products<tile_rows, 1>(own, panels + c * d, d, to + c, stride);
      }
    });
  }

 private:
  // Enough sums to hide the latency of an FMA, few enough to leave registers for operands: 16 of
  // AVX-512's 32 registers, 12 of AVX2's 16.
  template <class T>
  KVB_HD static constexpr Index tile_columns(int rows) {
#if defined(__AVX512F__)
    constexpr std::size_t kBytes = std::size_t{16} * 64;
#else
    constexpr std::size_t kBytes = std::size_t{12} * 32;
#endif
    return static_cast<Index>(std::bit_floor(kBytes / sizeof(T) / static_cast<std::size_t>(rows)));
  }

  // Products with all columns of `kPanels` panels.
  template <int kRows, Index kPanels, class T, class Column>
  KVB_HD static void panel_products(const T* rows, const Column* panels, Index d, T* out,
                                    Index stride) {
    constexpr Index kColumns = std::min(kPanel, tile_columns<T>(kRows));
    for (Index c = 0; c < kPanel; c += kColumns) {
      T sum[kRows][kPanels][kColumns] = {};
      for (Index t = 0; t < d; ++t) {
        for (int r = 0; r < kRows; ++r) {
          const T x = rows[r * d + t];
          for (Index p = 0; p < kPanels; ++p) {
            const Column* column = panels + (p * d + t) * kPanel + c;
#pragma omp simd
            for (Index k = 0; k < kColumns; ++k) {
              sum[r][p][k] = std::fma(x, static_cast<T>(column[k]), sum[r][p][k]);
            }
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (Index p = 0; p < kPanels; ++p) {
          std::copy_n(sum[r][p], kColumns, out + r * stride + p * kPanel + c);
        }
      }
    }
  }
};

/// Memory of a stream's state on the CPU.
class HostArena {
 public:
  /// to = `count` elements, all bits 0, valid for the arena's life.
  template <class T>
  void allocate(T*& to, Index count) {
    static_assert(std::is_trivially_copyable_v<T>);
    blocks_.emplace_back(static_cast<std::size_t>(count) * sizeof(T));
    to = reinterpret_cast<T*>(blocks_.back().data());
  }

 private:
  std::vector<AlignedVector<unsigned char>> blocks_;
};

}  // namespace kvbench
