// The threads that carry out the steps of a stream together: a team of one on the CPU, the threads
// of a block on a GPU (gpu/team.cuh). A step is written once, against this interface, so both make
// the same decisions from the same numbers.
//
// Every member of a team calls every function, with equal arguments. On return all members see what
// any member wrote before or in the call, and all got the same result.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// A matrix [d, columns] that grows and changes by columns is held in panels of this many: [., d,
/// kPanel]. Neighbouring columns lie together, for vectors and for the lanes of a warp.
inline constexpr Index kPanel = 32;

/// Where row t of a column lies in panels.
KVB_HD constexpr Index in_panels(Index column, Index t, Index d) {
  return (column / kPanel * d + t) * kPanel + column % kPanel;
}

/// Columns of the panels that hold `columns` of them.
KVB_HD constexpr Index whole_panels(Index columns) {
  return (columns + kPanel - 1) / kPanel * kPanel;
}

/// tile(first, R) for rows [first, first + R) until all `count` rows are done, R in [1, 6] an
/// std::integral_constant.
template <class Tile>
KVB_HD void in_row_tiles(Index count, const Tile& tile) {
  constexpr Index kRows = 6;
  const Index tiles = (count + kRows - 1) / kRows;
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

/// A value and the place where it was found; -1: nowhere.
struct Found {
  double value = 0.0;
  Index place = -1;
};

/// What a search found, and how many values it asked for.
struct Searched {
  Found found;
  Index asked = 0;
};

/// A team of one.
class OneThread {
 public:
  /// f(i) for each i in [0, n), in any order, each by one member. No f may read what another
  /// writes.
  template <class F>
  KVB_HD void each(Index n, const F& f) const {
#pragma omp simd
    for (Index i = 0; i < n; ++i) {
      f(i);
    }
  }

  /// f() by one member.
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
      if (best.place < 0 ? x == x : x > best.value) {
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
      if (best.place < 0 ? x == x : x < best.value) {
        best = {x, i};
      }
    }
    return best;
  }

  /// value(0) + value(1) + ... + value(n - 1), added in this order: the same bits on every team.
  template <class Value>
  KVB_HD double ordered_sum(Index n, const Value& value) const {
    double sum = 0.0;
    for (Index i = 0; i < n; ++i) {
      sum += value(i);
    }
    return sum;
  }

  /// The smallest value(i), i in [0, n), n > 0; of equal ones that of the lowest tie(i), in [0,
  /// 2^31). No value is below its bound(i), and only those are asked for that this does not rule
  /// out. No value is NaN.
  template <class Bound, class Value, class Tie>
  KVB_HD Searched smallest_bounded(Index n, const Bound& bound, const Value& value,
                                   const Tie& tie) const {
    const Index first = smallest(n, bound).place;
    Searched best{{value(first), first}, 1};
    for (Index i = 0; i < n; ++i) {
      if (i == best.found.place || bound(i) > best.found.value) {
        continue;
      }
      const double x = value(i);
      ++best.asked;
      const double smallest = best.found.value;
      if (x != smallest ? x < smallest : tie(i) < tie(best.found.place)) {
        best.found = {x, i};
      }
    }
    return best;
  }

  /// out = those i in [0, n) that `is` holds for, in any order; returns how many.
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

  /// The largest value(i), i in [0, n); -inf where n is 0. No value may be NaN.
  template <class Value>
  KVB_HD double max(Index n, const Value& value) const {
    double largest = -std::numeric_limits<double>::infinity();
#pragma omp simd reduction(max : largest)
    for (Index i = 0; i < n; ++i) {
      const double x = value(i);
      largest = x > largest ? x : largest;
    }
    return largest;
  }

  /// sums[r] = value(r, 0) + value(r, 1) + ... + value(r, n - 1), added in this order, for each r
  /// in [0, rows).
  template <class Value>
  KVB_HD void ordered_sums(Index rows, Index n, const Value& value, double* sums) const {
    // The sums of a tile's rows do not wait for each other.
    in_row_tiles(rows, [&](Index first, auto tile_rows) {
      double own[tile_rows] = {};
      for (Index i = 0; i < n; ++i) {
        for (int r = 0; r < tile_rows; ++r) {
          own[r] += value(first + r, i);
        }
      }
      std::copy_n(own, static_cast<int>(tile_rows), sums + first);
    });
  }

  /// out[r, c] = sum over t in [0, d) of rows[r, t] * column c of the panels, ascending, one FMA
  /// each, from 0. rows [count, d], c in [0, columns), out [count, stride]; columns beyond, to the
  /// end of the last panel, may be written too. stride >= whole_panels(columns).
  template <class T>
  KVB_HD void products(const double* rows, Index count, const T* panels, Index columns, Index d,
                       double* out, Index stride) const {
    for (Index first_column = 0; first_column < columns; first_column += kPanel) {
      in_row_tiles(count, [&](Index first, auto tile_rows) {
        // As many sums at a time as hide the latency of an FMA and fit into AVX2's registers.
        constexpr Index kColumns = tile_rows == 1 ? 32 : tile_rows == 2 ? 16 : 8;
        const Index end = std::min(kPanel, columns - first_column);
        for (Index c = 0; c < end; c += kColumns) {
          const T* column = panels + first_column * d + c;
          double sum[tile_rows][kColumns] = {};
          for (Index t = 0; t < d; ++t) {
            for (int r = 0; r < tile_rows; ++r) {
              const double x = rows[(first + r) * d + t];
#pragma omp simd
              for (Index k = 0; k < kColumns; ++k) {
                sum[r][k] = std::fma(x, static_cast<double>(column[t * kPanel + k]), sum[r][k]);
              }
            }
          }
          for (int r = 0; r < tile_rows; ++r) {
            std::copy_n(sum[r], kColumns, out + (first + r) * stride + first_column + c);
          }
        }
      });
    }
  }
};

/// Memory of a stream's state on the CPU.
class HostArena {
 public:
  /// to = `count` elements, all bits 0, that live as long as the arena.
  template <class T>
  void take(T*& to, Index count) {
    static_assert(std::is_trivially_copyable_v<T>);
    blocks_.emplace_back(static_cast<std::size_t>(count) * sizeof(T));
    to = reinterpret_cast<T*>(blocks_.back().data());
  }

 private:
  std::vector<AlignedVector<unsigned char>> blocks_;
};

/// Counts what a HostArena would take.
struct ArenaBytes {
  Index bytes = 0;

  template <class T>
  void take(T*& /*to*/, Index count) {
    bytes += count * static_cast<Index>(sizeof(T));
  }
};

}  // namespace kvbench
