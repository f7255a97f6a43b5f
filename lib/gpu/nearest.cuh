// The nearest kept keys of evicted tokens (attention/nearest_keys.hpp) on a device.
#pragma once

#include <span>
#include <vector>

#include "gpu/head.cuh"

namespace kvbench::gpu {

/// Returns the CPU's places. Memory beside the head: 16 bytes per token of `to`; per token of
/// `from` 8, and 16 for each 64 tokens of `to`, up to 264.
std::vector<Index> nearest_keys(const DeviceHead& head, std::span<const Index> to,
                                std::span<const Index> from);

}  // namespace kvbench::gpu
