// Nearest neighbours of the members that a stream retains (retained_kernels.hpp), from cosines of
// unit keys as RetainedKeys (facility_location.hpp) makes them.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/facility_location.hpp"
#include "attention/stream_rows.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// to = max(to, x), for what threads of a block share; a maximum of integers has no order.
KVB_HD inline void atomic_raise(std::int64_t* to, std::int64_t x) {
#if defined(KVB_DEVICE_CODE)
  static_assert(sizeof(long long) == sizeof(std::int64_t));
  atomicMax(reinterpret_cast<long long*>(to), static_cast<long long>(x));
#else
  *to = x > *to ? x : *to;
#endif
}

/// Counts up; returns the number before. For lists whose order does not matter.
KVB_HD inline int atomic_claim(int* count) {
#if defined(KVB_DEVICE_CODE)
  return atomicAdd(count, 1);
#else
  return (*count)++;
#endif
}

/// norms[i] = |key i|: channels ascending, one FMA each. A thread per key.
struct KeyNorms {
  static constexpr int kThreads = 128;
  struct Shared {};

  const float* keys;  // [n, d]
  Index n, d;
  double* norms;  // [n]

  KVB_HD Index launch_blocks() const { return (n + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index i = block * kThreads + thread;
    if (i >= n) {
      return;
    }
    double square = 0.0;
    for (Index t = 0; t < d; ++t) {
      const auto x = static_cast<double>(keys[i * d + t]);
      square = std::fma(x, x, square);
    }
    norms[i] = std::sqrt(square);
  }
};

/// A member's nearest neighbour: its similarity, then its place, in one integer that orders both; 0
/// where no other is similar at all.
struct Nearest {
  static KVB_HD std::int64_t make(std::int32_t similarity, Index place) {
    return similarity > 0 ? (std::int64_t{similarity} << 32) + place : 0;
  }
  static KVB_HD std::int32_t similarity(std::int64_t x) {
    return static_cast<std::int32_t>(x >> 32);
  }
  /// -1 where there is none.
  static KVB_HD std::int32_t place(std::int64_t x) {
    return x == 0 ? -1 : static_cast<std::int32_t>(x & 0xffffffff);
  }
};

/// Unit keys by place, and the search through them.
struct NeighbourSearch {
  static constexpr int kRows = 6;  // members searched for at a time
  static constexpr int kOwn = 2;   // columns of a thread at a time
  static constexpr Index kChunk = Index{kOwn} * kStreamWarp;

  const double* units;  // [d, stride]
  const double* norms;  // [stride]
  Index d, stride;      // stride: a multiple of kChunk
  Similarity kind;

  /// From the cosine of two keys with these norms.
  KVB_HD std::int32_t similarity(double cosine, double a, double b) const {
    return fixed_similarity(kind, cosine, a > 0.0 && b > 0.0 ? 0.5 : 0.0);
  }

  /// nearest[orphans[i]], 0 before, among places [0, members): by all threads of a block in one
  /// phase, a warp for six orphans and 64 members.
  KVB_HD void find(const std::int32_t* orphans, Index count, std::int64_t* nearest, Index members,
                   int thread) const {
    const Index batches = (count + kRows - 1) / kRows;
    const Index items = batches * ((members + kChunk - 1) / kChunk);
    for (Index item = thread / kStreamWarp; item < items; item += kStreamWarps) {
      const Index first = item % batches * kRows;
      Index row_of[kRows];
      KVB_UNROLL
      for (int r = 0; r < kRows; ++r) {
        // Beyond the last orphan its row is searched again, to no effect.
        row_of[r] = orphans[first + r < count ? first + r : count - 1];
      }
      search(row_of, item / batches * kChunk + thread % kStreamWarp, members, nearest);
    }
  }

 private:
  KVB_HD void search(const Index (&row_of)[kRows], Index column, Index members,
                     std::int64_t* nearest) const {
    double acc[kRows][kOwn] = {};
#if defined(__CUDA_ARCH__)
#pragma unroll 4
#endif
    for (Index t = 0; t < d; ++t) {
      const double* line = units + t * stride;
      double key[kOwn];
      KVB_UNROLL
      for (int o = 0; o < kOwn; ++o) {
        key[o] = line[column + o * kStreamWarp];
      }
      KVB_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const double x = line[row_of[r]];
        KVB_UNROLL
        for (int o = 0; o < kOwn; ++o) {
          acc[r][o] = std::fma(x, key[o], acc[r][o]);
        }
      }
    }
    KVB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      std::int64_t best = 0;
      KVB_UNROLL
      for (int o = 0; o < kOwn; ++o) {
        const Index p = column + o * kStreamWarp;
        if (p < members && p != row_of[r]) {
          const std::int64_t found =
              Nearest::make(similarity(acc[r][o], norms[row_of[r]], norms[p]), p);
          best = found > best ? found : best;
        }
      }
      if (best > 0) {
        atomic_raise(nearest + row_of[r], best);
      }
    }
  }
};

}  // namespace kvbench
