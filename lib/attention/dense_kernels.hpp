// Block kernels (core/machine.hpp) of dense attention: logits and weighted sums of values. Softmax
// of rows and sums of columns are in dense_row_kernels.hpp; device_dense.hpp drives them all.
//
// Query r sees keys 0 .. seen[r] - 1 of a list; the rest of its row is never read before the row's
// exponentials are made, and is 0 after. Tiles that no query sees are left out. Every sum has an
// order that does not depend on how the work was cut.
//
// Cost of one logit, with d and dv channels: d FMAs to make it, dv to weigh a value by it, some 30
// operations for its exponential; 8 bytes written by Logits, 8 read by RowMax, 16 moved by RowExp,
// 8 read by ColumnSums and 8 by WeighValues for each 64 value channels. At d = dv = 128 that is 300
// operations and 56 bytes, so float64 arithmetic is what a GPU waits for, not memory.
#pragma once

#include <cmath>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench::dense {

KVB_HD constexpr Index pieces(Index whole, Index piece) {
  return (whole + piece - 1) / piece;
}

KVB_HD constexpr Index least(Index a, Index b) {
  return a < b ? a : b;
}

/// Queries of one tile of Logits and WeighValues.
inline constexpr int kTileRows = 32;

/// out[t, i] = in[rows[i], t] * scale: what Logits reads, channels outermost, so that neighbouring
/// threads load neighbouring tokens. Tiles pass through shared memory, so that both sides move
/// whole lines. Bytes: count d (sizeof(In) + sizeof(Out)).
template <class In, class Out>
struct PackTransposed {
  static constexpr int kThreads = 256;
  static constexpr int kTile = 32;
  struct Shared {
    Out x[kTile][kTile + 1];  // one more: the columns read in phase 1 lie in 32 different banks
  };

  const In* in;       // [., d]
  const Index* rows;  // [count]; null: 0, 1, ...
  Out* out;           // [d, stride]
  Index count, d, stride;
  double scale;

  Index blocks() const { return pieces(count, kTile) * pieces(d, kTile); }
  KVB_HD int phases(Index) const { return 2; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Index channel_tiles = pieces(d, kTile);
    const Index i0 = block / channel_tiles * kTile;
    const Index t0 = block % channel_tiles * kTile;
    const int lane = thread % kTile;
    for (int at = thread / kTile; at < kTile; at += kThreads / kTile) {
      if (phase == 0) {
        const Index i = i0 + at;
        const Index t = t0 + lane;
        if (i < count && t < d) {
          const Index row = rows == nullptr ? i : rows[i];
          shared.x[at][lane] = static_cast<Out>(static_cast<double>(in[row * d + t]) * scale);
        }
      } else {
        const Index i = i0 + lane;
        const Index t = t0 + at;
        if (i < count && t < d) {
          out[t * stride + i] = shared.x[lane][at];
        }
      }
    }
  }
};

/// out[r, first_key + i] = sum_t queries[t, r] keys[t, i], t ascending, one FMA each, + log weight.
/// A block owns 32 queries x 128 keys; a thread 16 queries, which it reads from shared memory all
/// lanes at one address, x 2 keys, which it reads from global memory next to its neighbours'.
/// Channels beyond kDepth go on from what the thread wrote itself: the order of the sum stays.
struct Logits {
  static constexpr int kThreads = 128;
  static constexpr int kQueries = kTileRows;
  static constexpr int kKeys = 128;
  static constexpr int kDepth = 128;
  static constexpr int kOwn = 16;
  static constexpr int kLanes = kThreads * kOwn / kQueries;
  struct Shared {
    alignas(16) double q[kDepth][kQueries];
  };

  const double* queries;      // [d, query_stride]
  const float* keys;          // [d, key_stride]
  const double* log_weights;  // [count], of these keys; null: none
  const Index* tile_seen;     // [tiles of rows]: the most that a query of the tile sees
  double* out;                // [rows, out_stride]
  Index rows, count, d;
  Index query_stride, key_stride, out_stride;
  Index first_key;

  Index blocks() const { return pieces(rows, kQueries) * pieces(count, kKeys); }

  // Neighbouring blocks share keys, which are more bytes than queries.
  KVB_HD Index row_of(Index block) const { return block % pieces(rows, kQueries) * kQueries; }
  KVB_HD Index key_of(Index block) const { return block / pieces(rows, kQueries) * kKeys; }

  KVB_HD int phases(Index block) const {
    const bool visible = first_key + key_of(block) < tile_seen[row_of(block) / kQueries];
    return visible ? static_cast<int>(2 * pieces(d, kDepth)) : 0;
  }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Index r0 = row_of(block);
    const Index t0 = static_cast<Index>(phase / 2) * kDepth;
    const int depth = static_cast<int>(least(kDepth, d - t0));
    if (phase % 2 == 0) {
      for (int x = thread; x < depth * kQueries; x += kThreads) {
        const int t = x / kQueries;
        const int r = x % kQueries;
        shared.q[t][r] = r0 + r < rows ? queries[(t0 + t) * query_stride + r0 + r] : 0.0;
      }
      return;
    }
    const int own = thread / kLanes * kOwn;
    // Beyond the last key its value is computed again and not written.
    const Index key_a = key_of(block) + thread % kLanes;
    const Index key_b = key_a + kLanes;
    const float* a = keys + t0 * key_stride + least(key_a, count - 1);
    const float* b = keys + t0 * key_stride + least(key_b, count - 1);
    double acc_a[kOwn];
    double acc_b[kOwn];
    for (int r = 0; r < kOwn; ++r) {
      const bool go_on = t0 > 0 && r0 + own + r < rows;
      const double* from = out + (r0 + own + r) * out_stride + first_key;
      acc_a[r] = go_on && key_a < count ? from[key_a] : 0.0;
      acc_b[r] = go_on && key_b < count ? from[key_b] : 0.0;
    }
    for (int t = 0; t < depth; ++t) {
      const auto x = static_cast<double>(a[t * key_stride]);
      const auto y = static_cast<double>(b[t * key_stride]);
      for (int r = 0; r < kOwn; ++r) {
        const double q = shared.q[t][own + r];
        acc_a[r] = std::fma(q, x, acc_a[r]);
        acc_b[r] = std::fma(q, y, acc_b[r]);
      }
    }
    const bool weigh = log_weights != nullptr && t0 + depth == d;
    const double weight_a = weigh ? log_weights[least(key_a, count - 1)] : 0.0;
    const double weight_b = weigh ? log_weights[least(key_b, count - 1)] : 0.0;
    for (int r = 0; r < kOwn; ++r) {
      if (r0 + own + r < rows) {
        double* to = out + (r0 + own + r) * out_stride + first_key;
        if (key_a < count) {
          to[key_a] = acc_a[r] + weight_a;
        }
        if (key_b < count) {
          to[key_b] = acc_b[r] + weight_b;
        }
      }
    }
  }
};

/// partial[s, r, c] = sum over tokens i of slab s of weights[r, i] values[i, c], i ascending, one
/// FMA each. A block owns a slab, 32 queries and 64 channels; a thread 8 queries, whose weights it
/// reads from shared memory all lanes at one address, x 2 channels. It goes on from what it wrote
/// itself every kStage tokens. Slabs that none of the 32 queries sees are not written.
struct WeighValues {
  static constexpr int kThreads = 128;
  static constexpr int kQueries = kTileRows;
  static constexpr int kChannels = 64;
  static constexpr int kStage = 128;
  static constexpr int kOwn = 8;
  static constexpr int kLanes = kThreads * kOwn / kQueries;
  static constexpr Index kSlab = 512;
  struct Shared {
    // Two more: pairs stay aligned, and 16 tokens x 2 queries are written to different banks.
    alignas(16) double weight[kStage][kQueries + 2];
    Index row[kStage];
  };

  const double* weights;    // [rows, stride]
  const float* values;      // [., dv]
  const Index* value_rows;  // of `values`, [count]; null: 0, 1, ...
  const Index* tile_seen;   // [tiles of rows]: the most that a query of the tile sees
  double* partial;          // [slabs of all tokens, rows, dv]
  Index rows, stride, dv;
  Index first, count;  // tokens [first, first + count) of the weights; first in whole slabs

  KVB_HD Index row_tiles() const { return pieces(rows, kQueries); }
  KVB_HD Index channel_tiles() const { return pieces(dv, kChannels); }
  Index blocks() const { return channel_tiles() * row_tiles() * pieces(count, kSlab); }

  KVB_HD Index channel_of(Index block) const { return block % channel_tiles() * kChannels; }
  KVB_HD Index row_of(Index block) const {
    return block / channel_tiles() % row_tiles() * kQueries;
  }
  KVB_HD Index token_of(Index block) const {
    return first + block / (channel_tiles() * row_tiles()) * kSlab;
  }
  // Where the tokens of the block's slab end that one of its queries sees.
  KVB_HD Index end_of(Index block) const {
    const Index most = tile_seen[row_of(block) / kQueries];
    return least(most, least(first + count, token_of(block) + kSlab));
  }

  KVB_HD int phases(Index block) const {
    const Index left = end_of(block) - token_of(block);
    return left > 0 ? static_cast<int>(2 * pieces(left, kStage)) : 0;
  }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Index r0 = row_of(block);
    const Index slab = token_of(block);
    const Index i0 = slab + static_cast<Index>(phase / 2) * kStage;
    const int tokens = static_cast<int>(least(kStage, end_of(block) - i0));
    if (phase % 2 == 0) {
      for (int x = thread; x < kStage * kQueries; x += kThreads) {
        const int r = x / 16 % kQueries;
        const int i = x % 16 + x / (16 * kQueries) * 16;
        shared.weight[i][r] =
            i < tokens && r0 + r < rows ? weights[(r0 + r) * stride + i0 + i] : 0.0;
      }
      for (int i = thread; i < tokens; i += kThreads) {
        const Index at = i0 + i - first;
        shared.row[i] = value_rows == nullptr ? at : value_rows[at];
      }
      return;
    }
    const int own = thread / kLanes * kOwn;
    // Beyond the last channel its sums are made again and not written.
    const Index channel_a = channel_of(block) + thread % kLanes;
    const Index channel_b = channel_a + kLanes;
    const float* a = values + least(channel_a, dv - 1);
    const float* b = values + least(channel_b, dv - 1);
    double* to = partial + (slab / kSlab * rows + r0 + own) * dv;
    double acc_a[kOwn];
    double acc_b[kOwn];
    for (int r = 0; r < kOwn; ++r) {
      const bool go_on = i0 > slab && r0 + own + r < rows;
      acc_a[r] = go_on && channel_a < dv ? to[r * dv + channel_a] : 0.0;
      acc_b[r] = go_on && channel_b < dv ? to[r * dv + channel_b] : 0.0;
    }
    for (int i = 0; i < tokens; ++i) {
      const auto x = static_cast<double>(a[shared.row[i] * dv]);
      const auto y = static_cast<double>(b[shared.row[i] * dv]);
      for (int r = 0; r < kOwn; ++r) {
        const double w = shared.weight[i][own + r];
        acc_a[r] = std::fma(w, x, acc_a[r]);
        acc_b[r] = std::fma(w, y, acc_b[r]);
      }
    }
    for (int r = 0; r < kOwn; ++r) {
      if (r0 + own + r < rows) {
        if (channel_a < dv) {
          to[r * dv + channel_a] = acc_a[r];
        }
        if (channel_b < dv) {
          to[r * dv + channel_b] = acc_b[r];
        }
      }
    }
  }
};

/// out[r, c] = sum over slabs s that query r sees of partial[s, r, c], s ascending.
struct AddSlabs {
  static constexpr int kThreads = 128;
  struct Shared {};

  const double* partial;  // [slabs, rows, dv]
  const Index* seen;      // [rows]
  double* out;            // [rows, dv]
  Index rows, dv;

  Index blocks() const { return pieces(rows * dv, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    if (at >= rows * dv) {
      return;
    }
    const Index slabs = pieces(seen[at / dv], WeighValues::kSlab);
    double sum = 0.0;
    for (Index s = 0; s < slabs; ++s) {
      sum += partial[s * rows * dv + at];
    }
    out[at] = sum;
  }
};

}  // namespace kvbench::dense
