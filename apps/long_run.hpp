// Memory limit and interruption of long runs.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvbench {

/// --memory-limit: a number with K, M, G or T (powers of 1024), or without. malloc then returns
/// large blocks to the system when they are freed. `more` ends the help.
CLI::Option* memory_option(CLI::App& app, std::uint64_t& bytes, const char* more);

/// Bytes that the program takes without a KV head: resident memory, and an allowance for code that
/// is not loaded yet.
std::uint64_t program_bytes();

/// Makes SIGINT and SIGTERM end the process with kExitInterrupted and one line on stderr, between
/// two writes, after removing temporary files. Must be called once, by main.
void end_on_signals();

/// Returns a flag that the first SIGINT or SIGTERM sets, so that running jobs can finish and write
/// their rows. If the process still runs 1.5 s later, it prints `message` and ends as above. A
/// second signal ends it at once. Must be called after end_on_signals.
const std::atomic<bool>& stop_on_signals(std::string message);

/// Has `function` called before the process ends so, in another thread; an empty one: none. Waits
/// while a call runs.
void call_before_end(std::function<void()> function);

/// Throws InputError if `traces`, those that changed during the run that wrote `out`, is not empty.
void expect_unchanged(const std::vector<std::string>& traces, const std::string& out);

}  // namespace kvbench
