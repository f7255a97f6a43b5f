// A stream with revival (attention/streams.hpp) on a GPU.
#pragma once

#include <memory>

#include "attention/streams.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// Decides all steps of the task now; one block takes them in order. What it returns says what was
/// decided and needs nothing of the arguments. Memory: keys as attended 4 n d, logits 8 group n,
/// the sketch's keys 4 rows cells d, some 40 n beside. Throws IoError where the device fails or its
/// memory does not suffice.
std::unique_ptr<ReviveStream> revive(const Head& head, const ReviveTask& task);

}  // namespace kvbench::gpu
