// Block kernels over all rows of one matrix: norms, and the mean and covariance that PCA asks for.
#pragma once

#include <cmath>

#include "core/machine.hpp"
#include "core/types.hpp"

namespace kvbench {

/// out[i] = |x_i|: squares added in the order of the channels, a thread per row. A warp's lines
/// stay in the first-level cache while its threads walk along their rows.
struct RowNorms {
  static constexpr int kThreads = 64;
  struct Shared {};

  const float* rows;  // [n, d]
  Index n;
  Index d;
  double* out;  // [n]

  KVB_HD Index launch_blocks() const { return (n + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index i = block * kThreads + thread;
    if (i >= n) {
      return;
    }
    const float* row = rows + i * d;
    double sum = 0.0;
    for (Index t = 0; t < d; ++t) {
      const auto x = static_cast<double>(row[t]);
      sum += x * x;
    }
    out[i] = std::sqrt(sum);
  }
};

/// out[t] = mean over all rows of channel t, added in the order of the rows, a thread per channel:
/// a chain of n additions, with the next reads in flight.
struct ColumnMeans {
  static constexpr int kThreads = 32;
  static constexpr int kAhead = 16;
  struct Shared {};

  const float* rows;  // [n, d]
  Index n;
  Index d;
  double* out;  // [d]

  KVB_HD Index launch_blocks() const { return (d + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index t = block * kThreads + thread;
    if (t >= d) {
      return;
    }
    const float* x = rows + t;
    double sum = 0.0;
    Index i = 0;
    for (; i + kAhead <= n; i += kAhead) {
      float next[kAhead];
      for (int r = 0; r < kAhead; ++r) {
        next[r] = x[(i + r) * d];
      }
      for (int r = 0; r < kAhead; ++r) {
        sum += static_cast<double>(next[r]);
      }
    }
    for (; i < n; ++i) {
      sum += static_cast<double>(x[i * d]);
    }
    out[t] = sum / static_cast<double>(n);
  }
};

/// Sums of (x_it - mean_t)(x_iu - mean_u), u <= t, over each chunk of 512 rows: one FMA per row, in
/// their order. A tile of 64 x 64 channels per block, 4 x 4 per thread, as Gram of walk_kernels.hpp
/// reads them.
struct ChunkCovariance {
  static constexpr int kThreads = 256;
  static constexpr int kSide = 16;  // threads a side
  static constexpr int kOwn = 4;    // channels of a thread, each way
  static constexpr int kTile = kSide * kOwn;
  static constexpr Index kRows = 512;
  struct Shared {};

  const float* rows;   // [n, d]
  const double* mean;  // [d]
  Index n;
  Index d;
  Index first;   // chunk
  Index chunks;  // how many of them
  double* out;   // [chunks, d, d]

  KVB_HD Index tiles() const { return (d + kTile - 1) / kTile; }
  KVB_HD Index launch_blocks() const { return chunks * tiles() * tiles(); }
  KVB_HD int phases(Index block) const {
    return block % tiles() <= block / tiles() % tiles() ? 1 : 0;
  }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index chunk = block / tiles() / tiles();
    const Index top = block / tiles() % tiles() * kTile + thread / kSide * kOwn;
    const Index side = block % tiles() * kTile + thread % kSide;
    // Beyond the end the last channel is read again; its sums are not.
    const auto clamped = [this](Index t) { return t < d ? t : d - 1; };
    Index left_at[kOwn];
    Index right_at[kOwn];
    double left_mean[kOwn];
    double right_mean[kOwn];
    for (int r = 0; r < kOwn; ++r) {
      left_at[r] = clamped(top + r);
      right_at[r] = clamped(side + r * kSide);
      left_mean[r] = mean[left_at[r]];
      right_mean[r] = mean[right_at[r]];
    }
    const Index begin = (first + chunk) * kRows;
    const Index end = begin + kRows < n ? begin + kRows : n;
    double acc[kOwn][kOwn] = {};
    for (Index i = begin; i < end; ++i) {
      const float* x = rows + i * d;
      double left[kOwn];
      double right[kOwn];
      for (int r = 0; r < kOwn; ++r) {
        left[r] = static_cast<double>(x[left_at[r]]) - left_mean[r];
        right[r] = static_cast<double>(x[right_at[r]]) - right_mean[r];
      }
      for (int r = 0; r < kOwn; ++r) {
        for (int c = 0; c < kOwn; ++c) {
          acc[r][c] = std::fma(left[r], right[c], acc[r][c]);
        }
      }
    }
    for (int r = 0; r < kOwn; ++r) {
      for (int c = 0; c < kOwn; ++c) {
        const Index t = top + r;
        const Index u = side + c * kSide;
        if (u <= t && t < d) {
          out[(chunk * d + t) * d + u] = acc[r][c];
        }
      }
    }
  }
};

/// total[t, u] += the chunks' sums in their order, u <= t; a thread per entry.
struct AddChunks {
  static constexpr int kThreads = 256;
  struct Shared {};

  const double* sums;  // [chunks, d, d]
  Index chunks;
  Index d;
  double* total;  // [d, d]

  KVB_HD Index launch_blocks() const { return (d * d + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    if (at >= d * d || at % d > at / d) {
      return;
    }
    double sum = total[at];
    for (Index c = 0; c < chunks; ++c) {
      sum += sums[c * d * d + at];
    }
    total[at] = sum;
  }
};

}  // namespace kvbench
