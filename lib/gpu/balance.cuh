// SoftmaxBalance's walks (attention/softmax_balance.hpp) on a device.
#pragma once

#include <span>

#include "attention/softmax_balance.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// The same signs, probabilities and counts as the CPU's. The CPU itself walks blocks of more than
/// 4096 tokens, and those of fewer than 64, where launches take longer than the walk. Memory: two
/// arrays of block^2 elements of the head's precision for each block of tokens that is walked at
/// once. None exceeds the scratch, unless one block of tokens does; and some numbers per token.
WalkCounts balance_blocks(const Head& head, const BalanceBlocks& blocks,
                          std::span<std::int8_t> signs, std::span<double> probability);

}  // namespace kvbench::gpu
