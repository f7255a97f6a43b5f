// What the block kernels of streams share (eviction_kernels.hpp, retained_kernels.hpp): one block
// of threads lives through a whole stream, so that each piece of work is a function of the thread
// that calls it. Products are sums over channels, ascending, one FMA each, as inner_products makes
// them.
#pragma once

#include <cmath>
#include <limits>

#include "attention/scores.hpp"
#include "core/machine.hpp"

namespace kvbench {

inline constexpr int kStreamThreads = 512;
inline constexpr int kStreamWarp = 32;
inline constexpr int kStreamWarps = kStreamThreads / kStreamWarp;
inline constexpr Index kStreamColumns = 128;  ///< columns that a warp multiplies at a time
inline constexpr int kStreamFinalists = 16;   ///< of a block's threads, in a search

/// value(index(i)) added up for i = 0, 1, ..., count - 1 by one thread. What it will add lies in
/// registers before it is needed, so that additions wait for each other alone.
template <class At, class Value>
KVB_HD double sum_in_order(Index count, At index, Value value) {
  constexpr int kBatch = 8;
  const Index whole = count / kBatch * kBatch;
  Index at[kBatch] = {};
  double next[kBatch] = {};
  if (whole > 0) {
    KVB_UNROLL
    for (int r = 0; r < kBatch; ++r) {
      next[r] = value(index(r));
    }
  }
  if (whole > kBatch) {
    KVB_UNROLL
    for (int r = 0; r < kBatch; ++r) {
      at[r] = index(kBatch + r);
    }
  }
  double sum = 0.0;
  for (Index i = 0; i < whole; i += kBatch) {
    double now[kBatch];
    KVB_UNROLL
    for (int r = 0; r < kBatch; ++r) {
      now[r] = next[r];
    }
    if (i + kBatch < whole) {
      KVB_UNROLL
      for (int r = 0; r < kBatch; ++r) {
        next[r] = value(at[r]);
      }
    }
    if (i + 2 * kBatch < whole) {
      KVB_UNROLL
      for (int r = 0; r < kBatch; ++r) {
        at[r] = index(i + 2 * kBatch + r);
      }
    }
    KVB_UNROLL
    for (int r = 0; r < kBatch; ++r) {
      sum += now[r];
    }
  }
  for (Index i = whole; i < count; ++i) {
    sum += value(index(i));
  }
  return sum;
}

/// Up to `count` rows of queries in float64, in tiles of kRows: a thread reads one channel of a
/// tile at once, all lanes the same. [tiles, d, kRows], zeros beyond the last row.
template <int kRows>
struct PackedRows {
  double* x;
  Index count, d;

  static KVB_HD Index elements(Index count, Index d) {
    return (count + kRows - 1) / kRows * kRows * d;
  }
  KVB_HD Index tiles() const { return (count + kRows - 1) / kRows; }
  KVB_HD double& at(Index row, Index t) const {
    return x[(row / kRows * d + t) * kRows + row % kRows];
  }
  KVB_HD const double* tile(Index i) const { return x + i * d * kRows; }
};

/// acc[r][o] = <row r of a tile, column first + lane + 32 o of columns [d, stride]>.
template <int kRows, int kOwn, class Column>
KVB_HD void multiply_columns(const double* tile, const Column* columns, Index d, Index stride,
                             Index first, int lane, double (&acc)[kRows][kOwn]) {
  static_assert(kOwn * kStreamWarp == kStreamColumns);
  const Column* own = columns + first + lane;
  KVB_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVB_UNROLL
    for (int o = 0; o < kOwn; ++o) {
      acc[r][o] = 0.0;
    }
  }
#if defined(__CUDA_ARCH__)
#pragma unroll 4
#endif
  for (Index t = 0; t < d; ++t) {
    double column[kOwn];
    KVB_UNROLL
    for (int o = 0; o < kOwn; ++o) {
      column[o] = static_cast<double>(own[t * stride + o * kStreamWarp]);
    }
    KVB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const double x = tile[t * kRows + r];
      KVB_UNROLL
      for (int o = 0; o < kOwn; ++o) {
        acc[r][o] = std::fma(x, column[o], acc[r][o]);
      }
    }
  }
}

/// The softmax of `group` rows of logits over the tokens held: largest logits in three phases, the
/// exponentials in place, sums by one thread per row.
struct SoftmaxRows {
  Index group;
  double* parts;    // [group * lanes()]
  double* few;      // [group, kStreamFinalists]
  double* largest;  // [group]
  double* sums;     // [group]

  /// Threads that look at one row: of 512 as many as there are for each, at least a warp.
  static KVB_HD int lanes(Index group) {
    int teams = 1;
    while (teams < group && teams < kStreamWarps) {
      teams *= 2;
    }
    return kStreamThreads / teams;
  }

  KVB_HD void find_parts(const double* x, Index stride, Index size, int thread) const {
    const int width = lanes(group);
    const int lane = thread % width;
    for (Index h = thread / width; h < group; h += kStreamThreads / width) {
      double most = -std::numeric_limits<double>::infinity();
      for (Index s = lane; s < size; s += width) {
        const double y = x[h * stride + s];
        most = y > most ? y : most;
      }
      parts[h * width + lane] = most;
    }
  }
  KVB_HD void find_few(int thread) const {
    const int width = lanes(group);
    for (Index i = thread; i < group * kStreamFinalists; i += kStreamThreads) {
      const double* part = parts + i / kStreamFinalists * width;
      double most = -std::numeric_limits<double>::infinity();
      for (int l = static_cast<int>(i % kStreamFinalists); l < width; l += kStreamFinalists) {
        most = part[l] > most ? part[l] : most;
      }
      few[i] = most;
    }
  }
  KVB_HD void find_largest(int thread) const {
    for (Index h = thread; h < group; h += kStreamThreads) {
      double most = few[h * kStreamFinalists];
      for (int i = 1; i < kStreamFinalists; ++i) {
        const double y = few[h * kStreamFinalists + i];
        most = y > most ? y : most;
      }
      largest[h] = most;
    }
  }
  KVB_HD void make_exponentials(double* x, Index stride, Index size, int thread) const {
    for (Index h = 0; h < group; ++h) {
      for (Index s = thread; s < size; s += kStreamThreads) {
        x[h * stride + s] = exp_shared(x[h * stride + s] - largest[h]);
      }
    }
  }

  /// Warps whose first lanes add up while the others multiply.
  KVB_HD int sum_warps() const {
    return group < kStreamWarps / 2 ? static_cast<int>(group) : kStreamWarps / 2;
  }
  /// sums[h] = finish(sum of row h over index(0), index(1), ...) by thread h / sum_warps() of warp
  /// h % sum_warps(): few share a warp.
  template <class At, class Finish>
  KVB_HD void make_sums(const double* x, Index stride, Index size, At index, Finish finish,
                        int thread) const {
    const Index warps = sum_warps();
    for (Index h = thread / kStreamWarp + thread % kStreamWarp * warps; h < group;
         h += warps * kStreamWarp) {
      const double* row = x + h * stride;
      sums[h] = finish(sum_in_order(size, index, [=](Index s) { return row[s]; }));
    }
  }
};

/// The memory behind SoftmaxRows.
template <class M>
class StreamSums {
 public:
  StreamSums(M& machine, Index group)
      : group_(group),
        parts_(machine, group * SoftmaxRows::lanes(group)),
        few_(machine, group * kStreamFinalists),
        largest_(machine, group),
        sums_(machine, group) {}

  SoftmaxRows rows() const {
    return {group_, parts_.data(), few_.data(), largest_.data(), sums_.data()};
  }

 private:
  Index group_;
  Array<double, M> parts_, few_, largest_, sums_;
};

/// Adds one query head's weight to those of the heads before it.
KVB_HD inline double add_weight(Reduce reduce, double sum, double weight) {
  return reduce == Reduce::max ? (sum < weight ? weight : sum) : sum + weight;
}

}  // namespace kvbench
