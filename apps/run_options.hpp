// Options that `replay` and `evaluate` share (heads, device, files), and the run itself.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "replay/planner.hpp"

namespace kvbench {

/// Options as the command line has them, before they are read.
struct RunOptions {
  ReplayOptions replay;
  std::string protocol{name(ReplayOptions{}.protocol)};
  std::string scores{name(ReplayOptions{}.scores)};
  std::string precision{name(ReplayOptions{}.precision)};
  std::string config;
  std::string shard;
  std::string memory_limit;
  std::string per_query{name(ReplayOptions{}.per_query)};
  bool dry_run = false;
  bool evaluates = false;  ///< caches take the place of algorithms
};

/// Traces, output, --config and --dry-run.
void add_files(CLI::App& sub, RunOptions& o);
/// --layers, --heads, --prompts.
void add_selection(CLI::App& sub, RunOptions& o, const char* group);
/// Device, threads, memory, shards, side tables, --resume and --overwrite.
void add_machine(CLI::App& sub, RunOptions& o, const char* group);

/// Makes a plan, and prints it or runs it. Throws Exit where the run did not end with code 0.
void run(CLI::App& command, RunOptions& o);

}  // namespace kvbench
