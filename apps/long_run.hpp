// Shared by commands that run for a long time: a size in bytes from the command line, and how a run
// is interrupted.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace kvbench {

/// `--memory-limit`: bytes, or a number with K, M, G or T (powers of 1024). Throws InputError.
std::uint64_t parse_memory_limit(const std::string& text);

/// From now on the first SIGINT or SIGTERM sets the flag that is returned, so that running jobs
/// finish and their rows are written; the second ends the process at once.
const std::atomic<bool>& stop_on_signals();

}  // namespace kvbench
