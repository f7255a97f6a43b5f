// Block kernels of facility location (facility_location.hpp) over unit keys in blocks of columns,
// as UnitKeys holds them. Cosines are the CPU's to the bit and sums are integers: no order and no
// cutting changes a gain.
#pragma once

#include <cstdint>

#include "attention/facility_location.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// The ground set in a machine's memory.
struct CoverageGround {
  static constexpr Index kBlock = UnitKeys::kBlock;

  const double* units;    // [blocks, d, kBlock]; zero columns for zero keys and beyond the end
  const double* offsets;  // [blocks * kBlock]: 1/2, or 0 where the unit key is 0
  Index blocks;
  Index d;
  Similarity kind;

  /// Element t of unit key `place` lies kBlock * t behind this.
  KVB_HD const double* column(Index place) const {
    return units + place / kBlock * d * kBlock + place % kBlock;
  }
  /// Similarity from the cosine, of keys with these offsets.
  KVB_HD std::int32_t similarity(double cosine, double a, double b) const {
    return fixed_similarity(kind, cosine, a < b ? a : b);
  }
};

/// Unit keys of some candidates in blocks of columns of their own, zeros beyond the last.
struct GatherUnits {
  static constexpr int kThreads = static_cast<int>(CoverageGround::kBlock);
  struct Shared {};

  CoverageGround ground;
  const Index* candidates;  // [count]
  Index count;
  double* units;    // [blocks of count, d, kBlock]
  double* offsets;  // [blocks of count * kBlock]

  KVB_HD Index blocks() const { return (count + kThreads - 1) / kThreads; }
  /// One launch block per block of columns and channel.
  KVB_HD Index launch_blocks() const { return blocks() * ground.d; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block / ground.d * kThreads + thread;
    const Index t = block % ground.d;
    const bool there = at < count;
    const Index place = there ? candidates[at] : 0;
    units[block * kThreads + thread] =
        there ? ground.column(place)[t * CoverageGround::kBlock] : 0.0;
    if (t == 0) {
      offsets[at] = there ? ground.offsets[place] : 0.0;
    }
  }
};

/// out[c] += sum over the ground set of max(0, sim(c, .) - best). A tile of 64 candidates and 128
/// keys per block; a warp has 8 candidates, a thread 4 keys a warp's width apart: of its twelve
/// reads per channel eight are the same for the whole warp and four are of neighbours.
///
/// With `symmetric` the candidates are the ground set itself, `best` is null (all 0), and a tile
/// above the diagonal also serves the keys' own sums, so that those below it are left out.
struct Gains {
  static constexpr int kThreads = 256;
  static constexpr int kWarp = 32;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRows = 8;  // candidates of a thread
  static constexpr int kCols = 4;  // keys of a thread
  static constexpr int kTile = kWarps * kRows;
  static constexpr int kKeys = kWarp * kCols;
  static_assert(kKeys == CoverageGround::kBlock && CoverageGround::kBlock % kTile == 0);
  static_assert(kThreads >= kTile + kKeys);
  struct Shared {
    std::int64_t rows[kTile][kWarp + 1];  // the 1 keeps the sums along a row on different banks
    std::int64_t cols[kWarps][kKeys];
  };

  CoverageGround ground;
  const double* units;       // of the candidates, [., d, kBlock]
  const double* offsets;     // of the candidates
  Index count;               // candidates
  const std::int32_t* best;  // [ground.blocks * kBlock], or null: 0
  bool symmetric;
  std::int64_t* out;  // [count]

  KVB_HD Index tiles() const { return (count + kTile - 1) / kTile; }
  KVB_HD Index launch_blocks() const { return tiles() * ground.blocks; }
  KVB_HD int phases(Index block) const {
    return symmetric && block / tiles() < block % tiles() * kTile / kKeys ? 0 : 2;
  }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Index first = block % tiles() * kTile;
    const Index b = block / tiles();
    const bool columns = symmetric && b > first / kKeys;
    if (phase == 0) {
      multiply(first, b, columns, thread, shared);
    } else if (thread < kTile) {
      if (first + thread < count) {
        std::int64_t sum = 0;
        for (int l = 0; l < kWarp; ++l) {
          sum += shared.rows[thread][l];
        }
        atomic_add(out + first + thread, sum);
      }
    } else if (columns && thread < kTile + kKeys) {
      const int c = thread - kTile;
      if (b * kKeys + c < count) {
        std::int64_t sum = 0;
        for (int w = 0; w < kWarps; ++w) {
          sum += shared.cols[w][c];
        }
        atomic_add(out + b * kKeys + c, sum);
      }
    }
  }

 private:
  KVB_HD void multiply(Index first, Index b, bool columns, int thread, Shared& shared) const {
    const int lane = thread % kWarp;
    const int warp = thread / kWarp;
    const Index candidate = first + warp * kRows;
    double acc[kRows][kCols] = {};
    // A warp without candidates has nothing but zeros to add.
    if (candidate < count) {
      const double* left = units + candidate / kKeys * ground.d * kKeys + candidate % kKeys;
      const double* right = ground.units + b * ground.d * kKeys + lane;
      for (Index t = 0; t < ground.d; ++t, left += kKeys, right += kKeys) {
        double keys[kCols];
        KVB_UNROLL
        for (int c = 0; c < kCols; ++c) {
          keys[c] = right[c * kWarp];
        }
        KVB_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const double x = left[r];
          KVB_UNROLL
          for (int c = 0; c < kCols; ++c) {
            acc[r][c] = std::fma(x, keys[c], acc[r][c]);
          }
        }
      }
    }
    std::int64_t down[kCols] = {};
    KVB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const double own = offsets[candidate + r];
      std::int64_t across = 0;
      KVB_UNROLL
      for (int c = 0; c < kCols; ++c) {
        const Index key = b * kKeys + c * kWarp + lane;
        const std::int32_t similarity = ground.similarity(acc[r][c], own, ground.offsets[key]);
        const std::int32_t more = similarity - (best == nullptr ? 0 : best[key]);
        across += more > 0 ? more : 0;
        down[c] += similarity;
      }
      shared.rows[warp * kRows + r][lane] = across;
    }
    if (columns) {
      KVB_UNROLL
      for (int c = 0; c < kCols; ++c) {
        shared.cols[warp][c * kWarp + lane] = down[c];
      }
    }
  }
};

/// A += `place`: best = max(best, sim(place, .)), gain += what that adds. A thread per key.
struct AddKey {
  static constexpr int kThreads = static_cast<int>(CoverageGround::kBlock);
  static constexpr int kFinalists = 8;
  struct Shared {
    std::int64_t more[kThreads];
    std::int64_t sums[kFinalists];
  };

  CoverageGround ground;
  Index place;
  std::int32_t* best;  // [ground.blocks * kBlock]
  std::int64_t* gain;

  KVB_HD Index launch_blocks() const { return ground.blocks; }
  KVB_HD int phases(Index) const { return 3; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    if (phase == 0) {
      const Index key = block * kThreads + thread;
      const double* own = ground.column(place);
      const double* other = ground.column(key);
      double cosine = 0.0;
      for (Index t = 0; t < ground.d; ++t) {
        cosine = std::fma(own[t * kThreads], other[t * kThreads], cosine);
      }
      const std::int32_t similarity =
          ground.similarity(cosine, ground.offsets[place], ground.offsets[key]);
      const std::int32_t more = similarity - best[key];
      if (more > 0) {
        best[key] = similarity;
      }
      shared.more[thread] = more > 0 ? more : 0;
    } else if (phase == 1) {
      if (thread < kFinalists) {
        std::int64_t sum = 0;
        for (int i = thread; i < kThreads; i += kFinalists) {
          sum += shared.more[i];
        }
        shared.sums[thread] = sum;
      }
    } else if (thread == 0) {
      std::int64_t sum = 0;
      for (int i = 0; i < kFinalists; ++i) {
        sum += shared.sums[i];
      }
      atomic_add(gain, sum);
    }
  }
};

}  // namespace kvbench
