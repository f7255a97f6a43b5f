// Streams on a device: each runs from its first position to its last in one launch of one block
// when it is opened; steps then read what was decided. Contracts: attention/backend.hpp.
#pragma once

#include <memory>

#include "attention/streams.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

std::unique_ptr<EvictionStream> evictions(const Head& head, const EvictionRules& rules);

/// Where importance needs another phi than the logarithm, whose bits a device would not share, the
/// stream is the CPU's, of the host's head.
std::unique_ptr<RetentionStream> retention(const Head& head, const RetentionRules& rules);

}  // namespace kvbench::gpu
