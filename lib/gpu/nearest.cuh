// The kept keys nearest to tokens that leave a cache (attention/nearest_keys.hpp), on a device.
#pragma once

#include <span>
#include <vector>

#include "gpu/head.cuh"

namespace kvbench::gpu {

/// The same places as the CPU's. Memory beside the head: 16 bytes per token of `to`; 8 per token of
/// `from` and 16 for each 64 tokens of `to`, up to 264.
std::vector<Index> nearest_keys(const Head& head, std::span<const Index> to,
                                std::span<const Index> from);

}  // namespace kvbench::gpu
