// Memory, threads and devices of a plan.
#pragma once

#include <cstdint>

#include "gpu/device.hpp"
#include "replay/options.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Sets options.device and, on a device, open_device, heads_at_once and scratch_bytes. Throws
/// IoError if a head and its jobs do not fit the device.
void plan_device(Plan& plan, const DeviceChoice& device);

/// Returns upper bounds of the memory of a unit and its jobs.
MemoryNeed memory_need(const Plan& plan, const Unit& unit);

/// Returns the threads of the run, within the memory limit. Throws InputError if none fits.
int usable_threads(const Plan& plan);

/// Returns the most bytes that shares of common budgets take during the whole run.
std::uint64_t shared_bytes(const Plan& plan);

/// Returns how many KV heads are open at a time: plan.heads_at_once on a device, otherwise enough
/// to give every thread a job, within the memory limit; at least 1.
Index heads_at_once(const Plan& plan, int threads);

/// Returns the most bytes of heads that a run keeps between the check of their values and their
/// jobs: at most 256 MiB, and none under a memory limit, which is for the jobs.
std::uint64_t kept_bytes(const Plan& plan);

}  // namespace kvbench
