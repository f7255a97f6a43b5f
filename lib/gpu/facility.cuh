// Facility location (attention/facility_location.hpp) on a device.
#pragma once

#include <memory>
#include <span>

#include "attention/facility_location.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// Gains over M = keys of `ground`, equal to the CPU's. Similarities are recomputed on every call;
/// 256 candidates at a time are most efficient. The head must outlive it. Memory: 8 bytes per
/// element of M, and 20 per key.
std::unique_ptr<FacilityGains> facility_location(const DeviceHead& head,
                                                 std::span<const Index> ground, Similarity kind);

}  // namespace kvbench::gpu
