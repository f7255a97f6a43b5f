// Memory, threads and devices of a plan.
#pragma once

#include <cstdint>

#include "gpu/device.hpp"
#include "replay/options.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Chooses how many heads are on the device at a time and how much of its memory a job's arrays may
/// take. Throws IoError where a head and its jobs do not fit. Does nothing for the CPU.
void plan_device(Plan& plan, const DeviceChoice& device);

/// Returns the most bytes that a unit and its jobs need under the plan's protocol.
MemoryNeed memory_need(const Plan& plan, const Unit& unit);

/// Threads that the run uses under the memory limit. Throws InputError where one does not fit.
int usable_threads(const Plan& plan);

/// The most bytes of the heads' shares of common budgets, which are held for the whole run.
std::uint64_t shared_bytes(const Plan& plan);

/// KV heads whose jobs run together: plan.heads_at_once; on the CPU as many as give every thread a
/// job. Fewer where `threads` jobs leave less memory under the limit.
Index heads_at_once(const Plan& plan, int threads);

}  // namespace kvbench
