// Streams on a device. Opening one runs all its positions in one launch of one block; steps return
// the decisions. Contracts: attention/backend.hpp.
#pragma once

#include <memory>

#include "attention/streams.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

std::unique_ptr<EvictionStream> evictions(const DeviceHead& head, const EvictionRules& rules);

/// Runs on the CPU if importance needs a phi other than the logarithm, whose bits a device would
/// not share.
std::unique_ptr<RetentionStream> retention(const DeviceHead& head, const RetentionRules& rules);

}  // namespace kvbench::gpu
