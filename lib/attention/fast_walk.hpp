// SoftmaxBalance's walks with Gram matrices by tensor cores; all else is device_walk.hpp's.
//
// An entry of the Gram matrix is off by some 3 2^-22 |x_i||x_j| where elements are float32 or
// centred, and by some 2^-23 sqrt(d / 16) of itself as it is summed. So P(+1) is off by some 1e-6
// of the exponents' size, and a sign differs from the exact walk's where its uniform draw lies that
// near: one in 1e5 or so. The signs after it in its token block are another walk's, as
// well-balanced as the first.
#pragma once

#include <cmath>
#include <span>

#include "attention/dense_block.hpp"
#include "attention/device_walk.hpp"
#include "attention/fast_similar_kernels.hpp"

namespace kvbench {

/// Gram matrices from halves, scaled by `scale`. Scratch: 2 or 4 bytes per element of the channels.
template <class M>
struct FastGram {
  HalfScale scale;
  fast::Packed<M> tokens{};
  Index room = 0;  // rows that `tokens` holds

  void operator()(M& machine, const WalkLayout& layout, const double* channels, Index d,
                  double factor, double* out) {
    const Index rows = layout.blocks() * layout.padded();
    if (rows > room) {
      tokens = fast::Packed<M>(machine, rows, d, scale);
      room = rows;
    }
    tokens.pack_channels(machine, channels, layout.blocks(), layout.padded());
    const double per_sum = std::ldexp(factor, -2 * scale.exponent);
    dense::launch(machine, fast::SplitGram{{}, layout, tokens.view(), per_sum, out});
  }
};

/// balance_blocks_on() with Gram matrices by tensor cores. `keys`, `values`: how the head's are
/// scaled. Memory and errors: as there, and the halves.
template <class M>
WalkCounts balance_blocks_fast(M& machine, const HeadTensors<M>& head, HalfScale keys,
                               HalfScale values, const BalanceBlocks& blocks,
                               std::span<std::int8_t> signs, std::span<double> probability) {
  if (blocks.options.center) {
    // A key less the mean is at most twice the largest, and no half as a rule.
    keys = {keys.exponent - 1, true};
  }
  return DeviceWalk<M, FastGram<M>>(machine, head, blocks, {keys}, {values})
      .run(signs, probability);
}

}  // namespace kvbench
