// Block kernels of cosines by tensor cores (core/tile_product.hpp): the nearest keys, gains of
// facility location and the Gram matrices of walks. A warp owns 32 rows and goes through columns
// 64 at a time; its products lie in shared memory, where a lane reads the row it owns.
//
// Cost of a product: 2 d p flops of the tensor cores (p = 1, 2 or 3, core/tile_product.hpp) and 2
// to 10 operations of what is done with it. A warp's step of 65536 flops takes 16 clocks of the
// tensor cores and 24 to 48 of the first-level cache for its 3072 bytes: a third of their peak can
// be reached, 0.8 ps at d = 128 and p = 1 where float64 takes 7.7.
#pragma once

#include <cstdint>

#include "attention/coverage_kernels.hpp"
#include "attention/split_kernels.hpp"
#include "attention/walk_kernels.hpp"
#include "core/machine.hpp"
#include "core/tile_product.hpp"

namespace kvbench::fast {

/// What the kernels below share: four warps, each with 32 rows.
struct RowWarps {
  static constexpr int kThreads = 128;
  static constexpr Index kOwn = kWarpLanes;
  static constexpr Index kRows = kThreads / kWarpLanes * kOwn;
  static constexpr Index kColumns = ProductTile<2>::kColumns;
  struct Shared {
    ProductTile<2> products[kThreads / kWarpLanes];
  };

  KVB_HD int phases(Index) const { return 1; }
};

/// place[r] = the column i with the largest <from_r, to_i> * inverse[i], the lowest of equals.
struct NearestRows : RowWarps {
  SplitRows from, to;
  const float* inverse;  // [columns]
  Index rows, columns;
  Index* place;  // [rows]

  Index blocks() const { return pieces(rows, kRows); }

  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    const int warp = thread / kWarpLanes;
    const Index r0 = block * kRows + warp * kOwn;
    if (!runs_warp(thread) || r0 >= rows) {
      return;
    }
    ProductTile<2>& products = shared.products[warp];
    PerLane<float> most;
    PerLane<Index> best;
    for_lanes(thread, [&](int lane) {
      most[lane] = 0.0F;
      best[lane] = -1;
    });
    for (Index i0 = 0; i0 < columns; i0 += kColumns) {
      inner_tile(from, r0, to, i0, products);
      const auto end = static_cast<int>(least(kColumns, columns - i0));
      for_lanes(thread, [&](int lane) {
        for (int c = 0; c < end; c += 4) {
          const Quad quad = products.rows[lane][c / 4];
          for (int e = 0; e < 4 && c + e < end; ++e) {
            const float cosine = quad.x[e] * inverse[i0 + c + e];
            if (best[lane] < 0 || cosine > most[lane]) {
              most[lane] = cosine;
              best[lane] = i0 + c + e;
            }
          }
        }
      });
    }
    for_lanes(thread, [&](int lane) {
      if (r0 + lane < rows) {
        place[r0 + lane] = best[lane];
      }
    });
  }
};

/// out[b, i, j] = factor * <x_i, x_j> for i < j of token block b; others may be anything.
struct SplitGram : RowWarps {
  WalkLayout layout;
  SplitRows tokens;  // [token blocks x padded]
  double factor;     // of a sum of halves
  double* out;       // [token blocks, block, block]

  KVB_HD Index row_tiles() const { return pieces(layout.padded(), kRows); }
  KVB_HD Index column_tiles() const { return pieces(layout.padded(), kColumns); }
  Index blocks() const { return layout.blocks() * row_tiles() * column_tiles(); }

  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    const int warp = thread / kWarpLanes;
    const Index j0 = block % column_tiles() * kColumns;
    const Index i0 = block / column_tiles() % row_tiles() * kRows + warp * kOwn;
    const Index b = block / (column_tiles() * row_tiles());
    const Index nb = layout.length(b);
    if (!runs_warp(thread) || i0 >= nb || j0 >= nb || i0 >= j0 + kColumns) {
      return;
    }
    ProductTile<2>& products = shared.products[warp];
    inner_tile(tokens, b * layout.padded() + i0, tokens, b * layout.padded() + j0, products);
    for_lanes(thread, [&](int lane) {
      for (Index i = i0; i < i0 + kOwn; ++i) {
        double* row = out + (b * layout.block + i) * layout.block;
        for (int c = lane; c < kColumns; c += kWarpLanes) {
          const Index j = j0 + c;
          if (i < j && j < nb) {
            row[j] = static_cast<double>(products.at(static_cast<int>(i - i0), c)) * factor;
          }
        }
      }
    });
  }
};

/// Unit keys of facility location as halves: |x| <= 1.
inline constexpr HalfScale kUnitScale{14, true};

/// The ground set in a machine's memory.
struct SplitGround {
  SplitRows units;
  const double* offsets;  // [padded]: 1/2, or 0 where the unit key is 0
  Index count;            // keys; padded to blocks of UnitKeys
  Similarity kind;

  KVB_HD std::int32_t similarity(float product, double a, double b) const {
    const double cosine = static_cast<double>(product) * 0x1p-28;
    return fixed_similarity(kind, cosine, a < b ? a : b);
  }
};

/// Rows `candidates` of the ground set as an operand of their own, zeros beyond the last.
struct GatherSplit {
  static constexpr int kThreads = kTileSize;
  struct Shared {};

  SplitGround ground;
  const Index* candidates;  // [count]
  Index count;
  std::uint16_t* hi;  // packed, padded_rows(count) rows
  std::uint16_t* lo;
  double* offsets;  // [padded_rows(count)]

  KVB_HD Index depth_tiles() const { return ground.units.depth_tiles; }
  Index blocks() const { return padded_rows(count) / kTileSide * depth_tiles(); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block / depth_tiles() * kTileSide + thread / kTileSide;
    const Index t = block % depth_tiles();
    const bool there = at < count;
    const Index place = there ? candidates[at] : 0;
    const SplitTiles tile = ground.units.down(place / kTileSide, t);
    const Index from = place % kTileSide * kTileSide + thread % kTileSide;
    hi[block * kTileSize + thread] = there ? tile.hi[from] : std::uint16_t{0};
    lo[block * kTileSize + thread] = there ? tile.lo[from] : std::uint16_t{0};
    if (t == 0 && thread % kTileSide == 0) {
      offsets[at] = there ? ground.offsets[place] : 0.0;
    }
  }
};

/// out[c] += sum over the ground set of max(0, sim(c, .) - best): integers, so in any order.
struct SplitGains : RowWarps {
  static constexpr Index kSlab = 512;  // keys of a block

  SplitGround ground;
  SplitRows units;           // of the candidates
  const double* offsets;     // of the candidates
  Index count;               // candidates
  const std::int32_t* best;  // [ground, padded], or null: 0
  std::int64_t* out;         // [count]

  KVB_HD Index tiles() const { return pieces(count, kRows); }
  Index blocks() const { return tiles() * pieces(ground.count, kSlab); }

  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    const int warp = thread / kWarpLanes;
    const Index r0 = block % tiles() * kRows + warp * kOwn;
    if (!runs_warp(thread) || r0 >= count) {
      return;
    }
    const Index begin = block / tiles() * kSlab;
    const Index end = least(begin + kSlab, ground.count);
    ProductTile<2>& products = shared.products[warp];
    PerLane<std::int64_t> sums;
    for_lanes(thread, [&](int lane) { sums[lane] = 0; });
    for (Index key = begin; key < end; key += kColumns) {
      inner_tile(units, r0, ground.units, key, products);
      const auto keys = static_cast<int>(least(kColumns, end - key));
      for_lanes(thread, [&](int lane) {
        const double own = r0 + lane < count ? offsets[r0 + lane] : 0.0;
        for (int c = 0; c < keys; c += 4) {
          const Quad quad = products.rows[lane][c / 4];
          for (int e = 0; e < 4 && c + e < keys; ++e) {
            const Index at = key + c + e;
            const std::int32_t similarity = ground.similarity(quad.x[e], own, ground.offsets[at]);
            const std::int32_t more = similarity - (best == nullptr ? 0 : best[at]);
            sums[lane] += more > 0 ? more : 0;
          }
        }
      });
    }
    for_lanes(thread, [&](int lane) {
      if (r0 + lane < count) {
        atomic_add(out + r0 + lane, sums[lane]);
      }
    });
  }
};

/// A += the key in row 0 of `unit`: best = max(best, sim(key, .)), gain += what that adds. A warp
/// per 64 keys, a lane per 2. The products are those of SplitGains: what it said a key would gain
/// is what the key gains.
struct SplitAdd {
  static constexpr int kThreads = kWarpLanes;
  struct Shared {
    ProductTile<1> products;
  };

  SplitGround ground;
  SplitRows unit;
  const double* offsets;  // [1]
  std::int32_t* best;     // [ground, padded]
  std::int64_t* gain;

  Index blocks() const { return pieces(ground.count, ProductTile<1>::kColumns); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    if (!runs_warp(thread)) {
      return;
    }
    const Index key0 = block * ProductTile<1>::kColumns;
    inner_tile(unit, 0, ground.units, key0, shared.products);
    for_lanes(thread, [&](int lane) {
      std::int64_t sum = 0;
      for (Index c = lane; c < ProductTile<1>::kColumns && key0 + c < ground.count;
           c += kWarpLanes) {
        const std::int32_t similarity = ground.similarity(
            shared.products.at(0, static_cast<int>(c)), offsets[0], ground.offsets[key0 + c]);
        const std::int32_t more = similarity - best[key0 + c];
        if (more > 0) {
          best[key0 + c] = similarity;
          sum += more;
        }
      }
      atomic_add(gain, sum);
    });
  }
};

}  // namespace kvbench::fast
