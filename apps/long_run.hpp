// Shared by commands that run for a long time: a size in bytes from the command line, and how a run
// is interrupted.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace kvbench {

/// `--memory-limit`: bytes, or a number with K, M, G or T (powers of 1024). From now on malloc
/// gives large blocks back to the system when they are freed. Throws InputError.
std::uint64_t set_memory_limit(const std::string& text);

/// Memory that the program takes without a KV head: what it holds now, and room for code that it
/// has not run yet. Bytes.
std::uint64_t program_bytes();

/// From now on SIGINT and SIGTERM end the process at once, between two writes, with
/// kExitInterrupted and one line; unfinished files go. Called once, by main.
void end_on_signals();

/// From now on the first SIGINT or SIGTERM sets the flag that is returned, so that running jobs may
/// finish and their rows be written. Where the process has not ended after 1.5 s, whatever it is
/// doing, it prints `last_words` and ends with kExitInterrupted: between two writes, so that every
/// row is whole, and unfinished files go. A second signal ends the process at once. After
/// end_on_signals.
const std::atomic<bool>& stop_on_signals(std::string last_words);

/// Throws InputError where traces were written to while the rows of `out` were made.
void expect_unchanged(const std::vector<std::string>& traces, const std::string& out);

}  // namespace kvbench
