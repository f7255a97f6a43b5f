// SoftmaxBalance's walks (attention/softmax_balance.hpp) on a device.
#pragma once

#include <span>

#include "attention/softmax_balance.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// Returns the CPU's signs, probabilities and counts. Runs on the CPU for blocks of more than 4096
/// tokens, or fewer than 64, where launches take longer than the walk. Memory: two arrays of
/// block^2 elements of the head's precision per block walked at once, within the scratch unless one
/// block exceeds it, and some numbers per token.
WalkCounts balance_blocks(const DeviceHead& head, const BalanceBlocks& blocks,
                          std::span<std::int8_t> signs, std::span<double> probability);

}  // namespace kvbench::gpu
