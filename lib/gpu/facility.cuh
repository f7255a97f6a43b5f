// Facility location (attention/facility_location.hpp) on a device.
#pragma once

#include <memory>
#include <span>

#include "attention/facility_location.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// M = the keys of `ground`. The same gains as the CPU's; similarities are computed anew whenever
/// they are asked for, 256 candidates at best at once. The head must outlive it. Memory: 8 bytes
/// per element of M, and 20 per key.
std::unique_ptr<FacilityGains> facility_location(const Head& head, std::span<const Index> ground,
                                                 Similarity kind);

}  // namespace kvbench::gpu
