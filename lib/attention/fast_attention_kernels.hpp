// Block kernels of dense attention by tensor cores, in two passes over the keys and without their
// logits in memory. fast_attention.hpp drives them and says what they are worth.
//
// A "sum" u below is a logit in the units of a tile product: logit = factor u, factor = s / (Sq
// Sk). Exponents are differences of sums: u - top is exact or rounded by 2^-24 of itself, so that
// a large logit costs no digits of exp. Log weights are divided by the factor and added to u.
//
//   RowStates       top of the sums, sum and sum of squares of their exponentials, per row and slab
//   JoinRows        slabs of a row together, in float64 and ascending
//   WeighKeys       the sums again; probabilities, their sums by column, and their product with V
//   AddColumns      column sums of groups of rows together, in float64 and ascending
//   JoinNumerators  slabs of a row's numerator together, likewise
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/dense_row_kernels.hpp"
#include "attention/split_kernels.hpp"
#include "core/machine.hpp"
#include "core/tile_product.hpp"

namespace kvbench::fast {

/// Keys of a slab: what one warp goes through, in float32 from its beginning on.
inline constexpr Index kSlab = 512;
/// Keys of a tile.
inline constexpr Index kKeys = 64;
/// Rows of a group: those of a tile, and what column sums are first added over.
inline constexpr Index kGroup = kTileSide;

/// Softmax of one row over one slab: sums of exp(factor (u - top)) and of its square.
struct RowState {
  float top = -std::numeric_limits<float>::infinity();
  float sum = 0.0F;
  float square = 0.0F;
};

/// How a sum becomes an exponential.
struct Exponent {
  float per_sum;  ///< factor / ln 2, > 0 and finite

  /// exp(factor (u - top)), u <= top.
  KVB_HD float operator()(float u, float top) const { return std::exp2((u - top) * per_sum); }
};

/// Keys of one panel, and what the rows see of them.
struct KeyPanel {
  SplitRows keys;
  const float* log_weights;  // [padded_rows(count)] in units of sums; null: none
  const Index* seen;         // [rows]: keys of all panels that a row sees
  const Index* group_seen;   // [groups]: the most of a group, 0 beyond the last row
  Index rows;
  Index first, count;  // keys [first, first + count) are the panel's; first in whole slabs

  KVB_HD Index slabs() const { return pieces(count, kSlab); }
  /// Keys of row `r`, by whole tiles from `key`, that it sees.
  KVB_HD int visible(Index r, Index key) const {
    const Index left = r < rows ? seen[r] - key : 0;
    return static_cast<int>(left < 0 ? 0 : least(left, kKeys));
  }
  /// Sum of column `c` of a tile of keys that begins at `key`, with its log weight.
  KVB_HD float weighted(float sum, Index key, int c) const {
    return log_weights == nullptr ? sum : sum + log_weights[key - first + c];
  }
};

/// A warp owns 32 rows and a slab, a lane one row of it.
struct RowStates {
  static constexpr int kThreads = 128;
  static constexpr Index kOwn = kWarpLanes;  // rows of a warp
  struct Shared {
    ProductTile<2> sums[kThreads / kWarpLanes];
  };

  SplitRows queries;
  KeyPanel panel;
  Exponent exponent;
  Index all_slabs;  // of all panels
  RowState* out;    // [rows, all_slabs]; slabs that a row does not see are not written

  KVB_HD Index row_tiles() const { return pieces(panel.rows, kRowUnit); }
  // Neighbouring blocks share keys.
  Index blocks() const { return row_tiles() * panel.slabs(); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    if (!runs_warp(thread)) {
      return;
    }
    const int warp = thread / kWarpLanes;
    const Index r0 = block % row_tiles() * kRowUnit + warp * kOwn;
    const Index begin = panel.first + block / row_tiles() * kSlab;
    const Index* most = panel.group_seen + r0 / kGroup;
    const Index seen = most[0] < most[1] ? most[1] : most[0];
    const Index end = least(seen, least(begin + kSlab, panel.first + panel.count));
    if (begin >= end) {
      return;
    }
    ProductTile<2>& sums = shared.sums[warp];
    PerLane<RowState> states;
    for_lanes(thread, [&](int lane) { states[lane] = RowState{}; });
    for (Index key = begin; key < end; key += kKeys) {
      inner_tile(queries, r0, panel.keys, key - panel.first, sums);
      for_lanes(thread, [&](int lane) { add_tile(sums.rows[lane], r0 + lane, key, states[lane]); });
    }
    for_lanes(thread, [&](int lane) {
      const Index r = r0 + lane;
      if (r < panel.rows && begin < panel.seen[r]) {
        out[r * all_slabs + begin / kSlab] = states[lane];
      }
    });
  }

 private:
  // Each tile is summed on its own: an error of 64 + 8 roundings, not of 512.
  KVB_HD void add_tile(const Quad* row, Index r, Index key, RowState& state) const {
    const int visible = panel.visible(r, key);
    if (visible == 0) {
      return;
    }
    float top = state.top;
    for (int c = 0; c < visible; c += 4) {
      const Quad quad = row[c / 4];
      for (int e = 0; e < 4; ++e) {
        if (c + e < visible) {
          const float u = panel.weighted(quad.x[e], key, c + e);
          top = u > top ? u : top;
        }
      }
    }
    float sum = 0.0F;
    float square = 0.0F;
    for (int c = 0; c < visible; c += 4) {
      const Quad quad = row[c / 4];
      for (int e = 0; e < 4; ++e) {
        if (c + e < visible) {
          const float x = exponent(panel.weighted(quad.x[e], key, c + e), top);
          sum += x;
          square = std::fma(x, x, square);
        }
      }
    }
    // Nothing was there where the old top is -inf; -inf times a factor that underflowed is NaN.
    const float old = state.sum > 0.0F ? exponent(state.top, top) : 0.0F;
    state = {top, std::fma(state.sum, old, sum), std::fma(state.square, old * old, square)};
  }
};

/// What JoinRows makes of a row.
struct RowTotals {
  double shift;   ///< the largest logit; -inf where nothing is seen
  double total;   ///< sum of exponentials below it
  double square;  ///< sum of their squares
};

/// A thread per row.
struct JoinRows {
  static constexpr int kThreads = 64;
  struct Shared {};

  const RowState* states;  // [rows, slabs]
  const Index* seen;       // [rows]
  Index rows, slabs;
  double factor;
  RowTotals* out;  // [rows], as are the next two
  float* top;      // the largest sum
  float* inverse;  // 1 / total; 0 where that is 0

  Index blocks() const { return pieces(rows, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index r = block * kThreads + thread;
    if (r >= rows) {
      return;
    }
    const RowState* own = states + r * slabs;
    const Index end = pieces(seen[r], kSlab);
    RowState most;
    for (Index s = 0; s < end; ++s) {
      most.top = own[s].top > most.top ? own[s].top : most.top;
    }
    RowTotals all{
        end > 0 ? static_cast<double>(most.top) * factor : -std::numeric_limits<double>::infinity(),
        0.0, 0.0};
    for (Index s = 0; s < end; ++s) {
      const double below = static_cast<double>(own[s].top) - static_cast<double>(most.top);
      const double by = exp_shared(below * factor);
      all.total = std::fma(static_cast<double>(own[s].sum), by, all.total);
      all.square = std::fma(static_cast<double>(own[s].square), by * by, all.square);
    }
    out[r] = all;
    top[r] = most.top;
    inverse[r] = all.total > 0.0 ? static_cast<float>(1.0 / all.total) : 0.0F;
  }
};

/// A warp owns 16 rows, a slab and up to 128 channels of the values, whose sums stay in its
/// registers; a lane makes half a row's exponentials and sums two columns. Exponentials are at most
/// 1 and enter the product as halves under S = 2^14, with lo.
struct WeighKeys {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarpLanes;
  static constexpr Index kRows = kWarps * kGroup;
  static constexpr int kChannelTiles = 8;
  static constexpr int kStride = static_cast<int>(kKeys) + 8;  // of halves: 16 bytes beside a line
  static constexpr float kScale = 0x1p14F;
  struct alignas(32) Weights {
    std::uint16_t hi[kGroup][kStride];
    std::uint16_t lo[kGroup][kStride];
  };
  struct Shared {
    ProductTile<1> sums[kWarps];
    Weights weights[kWarps];
  };

  SplitRows queries;
  KeyPanel panel;
  Exponent exponent;
  const float* top;      // [rows], of JoinRows
  const float* inverse;  // [rows], of JoinRows
  /// [groups, column_stride]: sums of probabilities over a group's rows, with the sign bit set
  /// where one of them exceeds the threshold (0.0F is never so). Null: not wanted.
  float* columns;
  Index column_stride;
  float threshold;
  /// Values of the panel's keys; `numerator` null: not wanted.
  SplitRows values;
  float* numerator;  // [all slabs, rows, channel tiles x 16]

  KVB_HD Index row_tiles() const { return pieces(panel.rows, kRows); }
  KVB_HD Index channel_pieces() const {
    return numerator == nullptr ? 1 : pieces(values.depth_tiles, kChannelTiles);
  }
  Index blocks() const { return row_tiles() * channel_pieces() * panel.slabs(); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    if (!runs_warp(thread)) {
      return;
    }
    const int warp = thread / kWarpLanes;
    const Index r0 = block % row_tiles() * kRows + warp * kGroup;
    const Index piece = block / row_tiles() % channel_pieces();
    const Index begin = panel.first + block / (row_tiles() * channel_pieces()) * kSlab;
    const Index seen = panel.group_seen[r0 / kGroup];
    const Index end = least(seen, least(begin + kSlab, panel.first + panel.count));
    if (begin >= end) {
      return;
    }
    const bool sum_columns = columns != nullptr && piece == 0;
    const Index tile0 = piece * kChannelTiles;
    const int tiles = numerator == nullptr
                          ? 0
                          : static_cast<int>(least(kChannelTiles, values.depth_tiles - tile0));
    ProductTile<1>& sums = shared.sums[warp];
    Weights& weights = shared.weights[warp];
    TileSums<1, kChannelTiles> out;
    out.clear_all();
    for (Index key = begin; key < end; key += kKeys) {
      inner_tile(queries, r0, panel.keys, key - panel.first, sums);
      for_lanes(thread, [&](int lane) { weigh_half_row(r0, key, lane, sums, weights); });
      if (sum_columns) {
        for_lanes(thread, [&](int lane) {
          for (int c = lane; c < kKeys; c += kWarpLanes) {
            columns[r0 / kGroup * column_stride + key + c] = column_sum(sums, c);
          }
        });
      }
      for (Index k = 0; tiles > 0 && k < kKeys / kTileSide; ++k) {
        const SplitTiles left{&weights.hi[0][k * kTileSide], &weights.lo[0][k * kTileSide], 0,
                              kStride};
        out.multiply_add<RightSide::columns>(
            left, values.across((key - panel.first) / kTileSide + k, tile0), tiles);
      }
    }
    if (tiles > 0) {
      const Index width = values.depth_tiles * kTileSide;
      // Rows are padded to whole groups.
      out.store_all(
          numerator + (begin / kSlab * padded_rows(panel.rows) + r0) * width + tile0 * kTileSide,
          static_cast<int>(width), tiles);
    }
  }

 private:
  // Sums become probabilities; weights the halves of their exponentials.
  KVB_HD void weigh_half_row(Index r0, Index key, int lane, ProductTile<1>& sums,
                             Weights& weights) const {
    const int row = lane % kTileSide;
    const Index r = r0 + row;
    const int visible = panel.visible(r, key);
    const float shift = visible > 0 ? top[r] : 0.0F;
    const float by = visible > 0 ? inverse[r] : 0.0F;
    for (int i = lane / kTileSide; i < ProductTile<1>::kQuads; i += kWarpLanes / kTileSide) {
      Quad quad = sums.rows[row][i];
      for (int e = 0; e < 4; ++e) {
        const int c = 4 * i + e;
        const float x = c < visible ? exponent(panel.weighted(quad.x[e], key, c), shift) : 0.0F;
        const SplitHalf split = split_half(x * kScale);
        weights.hi[row][c] = split.hi;
        weights.lo[row][c] = split.lo;
        quad.x[e] = x * by;
      }
      sums.rows[row][i] = quad;
    }
  }

  KVB_HD float column_sum(const ProductTile<1>& sums, int c) const {
    float sum = 0.0F;
    bool noticed = false;
    for (int row = 0; row < kTileSide; ++row) {
      const float p = sums.at(row, c);
      sum += p;
      noticed = noticed || p > threshold;
    }
    return noticed ? -sum : sum;
  }
};

/// sums[i] += column i over the groups that see it, ascending. A thread per key.
struct AddColumns {
  static constexpr int kThreads = 128;
  struct Shared {};

  const float* columns;     // [groups, stride], of WeighKeys
  const Index* group_seen;  // [groups]
  Index groups, count, stride;
  double* sums;  // [count]
  dense::Notice notice;

  Index blocks() const { return pieces(count, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index i = block * kThreads + thread;
    if (i >= count) {
      return;
    }
    double sum = sums[i];
    bool noticed = false;
    for (Index g = 0; g < groups; ++g) {
      if (i < group_seen[g]) {
        const float x = columns[g * stride + i];
        sum += static_cast<double>(std::abs(x));
        noticed = noticed || x < 0.0F;
      }
    }
    sums[i] = sum;
    if (notice.tokens != nullptr && noticed) {
      notice.tokens[i] = 1;
    }
  }
};

/// out[r, c] = unit times the sum over the slabs that row r sees, ascending. A thread per entry.
struct JoinNumerators {
  static constexpr int kThreads = 128;
  struct Shared {};

  const float* numerator;  // of WeighKeys
  const Index* seen;       // [rows]
  Index rows, dv, width;   // width: channel tiles x 16
  double unit;
  double* out;  // [rows, dv]

  Index blocks() const { return pieces(rows * dv, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    if (at >= rows * dv) {
      return;
    }
    const Index r = at / dv;
    const Index slabs = pieces(seen[r], kSlab);
    double sum = 0.0;
    for (Index s = 0; s < slabs; ++s) {
      sum += static_cast<double>(numerator[(s * padded_rows(rows) + r) * width + at % dv]);
    }
    out[at] = sum * unit;
  }
};

}  // namespace kvbench::fast
