// Block kernels of SoftmaxBalance's walks (softmax_balance.hpp), many token blocks per launch.
// Every product, sum and exponential is the CPU's, in its order: the signs come out the same to the
// bit.
//
//   CenterKeys       the mean key of every token block
//   GatherChannels   a block's rows channel by channel, in float64: what Gram and Squares read
//   Squares          |x|^2 of every token
//   Gram             inner products above the diagonal, the only work of O(nb^2 d)
//   WalkFactors      G_ij exp(-shift_j) / w_i, in the place of the exponents; no sign is in it
//   Walk             the walk itself: a multiplication and an addition per pair
//
// Logarithms are the host's (device_walk.hpp).
#pragma once

#include <cmath>
#include <limits>

#include "attention/softmax_balance.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Token blocks of one launch: `tokens` tokens in blocks of `block`, the last one may be shorter.
struct WalkLayout {
  static constexpr Index kTile = 64;  ///< Gram's tile

  Index tokens = 0;
  Index block = 0;

  KVB_HD Index blocks() const { return (tokens + block - 1) / block; }
  KVB_HD Index length(Index b) const {
    const Index rest = tokens - b * block;
    return rest < block ? rest : block;
  }
  /// Row of a transposed block: tiles read past its end, where zeros are.
  KVB_HD Index padded() const { return (block + kTile - 1) / kTile * kTile; }
};

/// mean[b, t] of channel t over block b, i ascending. A thread per channel.
struct CenterKeys {
  static constexpr int kThreads = 128;
  struct Shared {};

  WalkLayout layout;
  const float* rows;    // [., d]
  const Index* tokens;  // [layout.tokens]
  Index d;
  double* mean;  // [blocks, d]

  KVB_HD Index groups() const { return (d + kThreads - 1) / kThreads; }
  KVB_HD Index launch_blocks() const { return layout.blocks() * groups(); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index b = block / groups();
    const Index t = block % groups() * kThreads + thread;
    if (t >= d) {
      return;
    }
    const Index nb = layout.length(b);
    const Index* own = tokens + b * layout.block;
    double sum = 0.0;
    for (Index i = 0; i < nb; ++i) {
      sum += static_cast<double>(rows[own[i] * d + t]);
    }
    mean[b * d + t] = sum / static_cast<double>(nb);
  }
};

/// out[b, t, i] = channel t of block b's token i, less the mean where there is one; 0 beyond the
/// block's end. Tiles of 32 x 32 through shared memory: rows are read and columns are written along
/// their length.
struct GatherChannels {
  static constexpr int kThreads = 256;
  static constexpr int kSide = 32;
  static constexpr int kLines = kThreads / kSide;
  struct Shared {
    float tile[kSide][kSide + 1];
  };

  WalkLayout layout;
  const float* rows;    // [., d]
  const Index* tokens;  // [layout.tokens]
  Index d;
  const double* mean;  // [blocks, d], or null
  double* out;         // [blocks, d, padded]

  KVB_HD Index token_tiles() const { return layout.padded() / kSide; }
  KVB_HD Index channel_tiles() const { return (d + kSide - 1) / kSide; }
  KVB_HD Index launch_blocks() const { return layout.blocks() * token_tiles() * channel_tiles(); }
  KVB_HD int phases(Index) const { return 2; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Index i0 = block % token_tiles() * kSide;
    const Index t0 = block / token_tiles() % channel_tiles() * kSide;
    const Index b = block / token_tiles() / channel_tiles();
    const Index nb = layout.length(b);
    const int lane = thread % kSide;
    if (phase == 0) {
      for (int line = thread / kSide; line < kSide; line += kLines) {
        const Index i = i0 + line;
        const Index t = t0 + lane;
        shared.tile[line][lane] =
            i < nb && t < d ? rows[tokens[b * layout.block + i] * d + t] : 0.0F;
      }
      return;
    }
    for (int line = thread / kSide; line < kSide; line += kLines) {
      const Index i = i0 + lane;
      const Index t = t0 + line;
      if (t < d) {
        double x = static_cast<double>(shared.tile[lane][line]);
        if (mean != nullptr && i < nb) {
          x -= mean[b * d + t];
        }
        out[(b * d + t) * layout.padded() + i] = x;
      }
    }
  }
};

/// out[token] = sum over t ascending of the token's channel squared. A thread per token.
struct Squares {
  static constexpr int kThreads = 128;
  struct Shared {};

  WalkLayout layout;
  const double* channels;  // [blocks, d, padded]
  Index d;
  double* out;  // [layout.tokens]

  KVB_HD Index launch_blocks() const { return (layout.tokens + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    if (at >= layout.tokens) {
      return;
    }
    const double* x = channels + at / layout.block * d * layout.padded() + at % layout.block;
    double sum = 0.0;
    for (Index t = 0; t < d; ++t) {
      sum = std::fma(x[t * layout.padded()], x[t * layout.padded()], sum);
    }
    out[at] = sum;
  }
};

/// out[b, i, j] = factor * <x_i, x_j> for i < j of block b; other entries are not written. A tile
/// of 64 x 64 per block, 4 x 4 per thread: of the eight doubles that a warp reads per channel, four
/// are 16 neighbours and four are one or two broadcasts, out of the first-level cache.
struct Gram {
  static constexpr int kThreads = 256;
  static constexpr int kSide = 16;  // threads a side
  static constexpr int kOwn = 4;    // rows and columns of a thread
  static_assert(kSide * kOwn == WalkLayout::kTile);
  struct Shared {};

  WalkLayout layout;
  const double* channels;  // [blocks, d, padded]
  Index d;
  double factor;
  double* out;  // [blocks, block, block]

  KVB_HD Index tiles() const { return layout.padded() / WalkLayout::kTile; }
  KVB_HD Index launch_blocks() const { return layout.blocks() * tiles() * tiles(); }
  KVB_HD int phases(Index block) const {
    const Index column = block % tiles();
    const Index row = block / tiles() % tiles();
    const Index nb = layout.length(block / tiles() / tiles());
    return row <= column && column * WalkLayout::kTile < nb ? 1 : 0;
  }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index b = block / tiles() / tiles();
    const Index i0 = block / tiles() % tiles() * WalkLayout::kTile + thread / kSide * kOwn;
    const Index j0 = block % tiles() * WalkLayout::kTile + thread % kSide;
    const double* x = channels + b * d * layout.padded();
    double acc[kOwn][kOwn] = {};
    for (Index t = 0; t < d; ++t, x += layout.padded()) {
      double left[kOwn];
      double right[kOwn];
      for (int r = 0; r < kOwn; ++r) {
        left[r] = x[i0 + r];
        right[r] = x[j0 + r * kSide];
      }
      for (int r = 0; r < kOwn; ++r) {
        for (int c = 0; c < kOwn; ++c) {
          acc[r][c] = std::fma(left[r], right[c], acc[r][c]);
        }
      }
    }
    const Index nb = layout.length(b);
    for (int r = 0; r < kOwn; ++r) {
      for (int c = 0; c < kOwn; ++c) {
        const Index i = i0 + r;
        const Index j = j0 + c * kSide;
        if (i < j && j < nb) {
          out[(b * layout.block + i) * layout.block + j] = acc[r][c] * factor;
        }
      }
    }
  }
};

/// shift[j] = max over i < j of the exponents e_ij; then in their place, for i < j,
/// exp(e_ij - shift_j) * ((inner_ij + bias) w_j). 32 columns per block, a warp per row.
struct WalkFactors {
  static constexpr int kThreads = 256;
  static constexpr int kColumns = 32;
  static constexpr int kLines = kThreads / kColumns;
  struct Shared {
    double most[kLines][kColumns];
  };

  WalkLayout layout;
  double* exponents;      // [blocks, block, block]; out: the factors
  const double* inner;    // the same; null: 1
  const double* weights;  // [layout.tokens]
  double bias;
  double* shift;  // [layout.tokens]; -inf for a block's first

  KVB_HD Index groups() const { return (layout.block + kColumns - 1) / kColumns; }
  KVB_HD Index launch_blocks() const { return layout.blocks() * groups(); }
  KVB_HD int phases(Index block) const {
    return block % groups() * kColumns < layout.length(block / groups()) ? 3 : 0;
  }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Index b = block / groups();
    const int lane = thread % kColumns;
    const int line = thread / kColumns;
    const Index j = block % groups() * kColumns + lane;
    const Index base = b * layout.block;
    if (j >= layout.length(b)) {
      return;
    }
    double* column = exponents + base * layout.block + j;
    if (phase == 0) {
      double most = -std::numeric_limits<double>::infinity();
      for (Index i = line; i < j; i += kLines) {
        const double e = column[i * layout.block];
        most = most < e ? e : most;
      }
      shared.most[line][lane] = most;
    } else if (phase == 1) {
      if (line == 0) {
        double most = shared.most[0][lane];
        for (int l = 1; l < kLines; ++l) {
          most = most < shared.most[l][lane] ? shared.most[l][lane] : most;
        }
        shared.most[0][lane] = most;
        shift[base + j] = most;
      }
    } else {
      const double* products = inner == nullptr ? nullptr : inner + base * layout.block + j;
      const double weight = weights[base + j];
      for (Index i = line; i < j; i += kLines) {
        const Index at = i * layout.block;
        const double value = ((products == nullptr ? 1.0 : products[at]) + bias) * weight;
        column[at] = exp_shared(column[at] - shared.most[0][lane]) * value;
      }
    }
  }
};

/// What a walk needs of a token block beside its tokens' numbers.
struct WalkBlock {
  double log_r2;
  double theory_c;
};

/// The walks, right-looking: a launch block per token block, a phase per token. In phase i + 1
/// every thread derives sign i by itself, from a sum that no one writes any more, and adds the
/// token to its own columns' sums. Out: P(+1) of every token, unclamped; the rest follows from it.
template <int threads>
struct Walk {
  static constexpr int kThreads = threads;
  static constexpr int kLongest = 4 * threads;  ///< tokens of a block, at most
  struct Shared {
    double sums[kLongest];
  };

  WalkLayout layout;
  WalkOptions options;
  const double* factors;    // [blocks, block, block]
  const double* shift;      // [layout.tokens], as are the next three
  const double* log_own;    // log G_jj
  const double* weights;    //
  const double* uniforms;   //
  const WalkBlock* blocks;  // [blocks]
  double* plus;             // [layout.tokens]

  KVB_HD Index launch_blocks() const { return layout.blocks(); }
  KVB_HD int phases(Index b) const { return static_cast<int>(layout.length(b)) + 1; }

  KVB_HD void run(int phase, Index b, int thread, Shared& shared) const {
    const Index nb = layout.length(b);
    if (phase == 0) {
      for (Index j = thread; j < nb; j += kThreads) {
        shared.sums[j] = 0.0;
      }
      return;
    }
    const Index i = phase - 1;
    const Index at = b * layout.block + i;
    const double* row = factors + at * layout.block;
    // The thread's columns are j = thread modulo kThreads. The first factor is asked for before
    // the sign is worked out: for most blocks it is the only one.
    Index j = i / kThreads * kThreads + thread;
    j += j > i ? 0 : kThreads;
    const double first = j < nb ? row[j] : 0.0;
    const double p = probability_of_plus(options, shared.sums[i], shift[at], blocks[b].log_r2,
                                         log_own[at], blocks[b].theory_c, i == 0);
    if (thread == 0) {
      plus[at] = p;
    }
    const double signed_weight = static_cast<double>(sign_of(p, uniforms[at])) * weights[at];
    if (j < nb) {
      shared.sums[j] = std::fma(first, signed_weight, shared.sums[j]);
    }
    for (j += kThreads; j < nb; j += kThreads) {
      shared.sums[j] = std::fma(row[j], signed_weight, shared.sums[j]);
    }
  }
};

}  // namespace kvbench
