// A stream with revival (attention/streams.hpp) on a GPU.
#pragma once

#include <memory>

#include "attention/streams.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// Runs all steps of the task at once, in one thread block. The result holds the decisions and no
/// reference to the arguments. Memory: keys as attended 4 n d, logits 8 group n, the sketch's keys
/// 4 rows cells d, about 40 n more. Throws IoError if the device fails or its memory does not
/// suffice.
std::unique_ptr<ReviveStream> revive(const DeviceHead& head, const ReviveTask& task);

}  // namespace kvbench::gpu
