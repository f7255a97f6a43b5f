// What `replay` and `evaluate` share: which heads, where to run, what to write; and the run itself.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "replay/plan.hpp"

namespace kvbench {

/// Options as the command line has them, before they are read.
struct RunOptions {
  ReplayOptions replay;
  std::string config;
  std::string shard;
  std::string memory_limit;
  bool dry_run = false;
  bool evaluates = false;  ///< caches take the place of algorithms
};

/// One value, or one list with commas, per mention: what follows may be a trace.
inline CLI::Option* repeatable(CLI::Option* option) {
  return option->allow_extra_args(false);
}

/// Traces, output, --config and --dry-run.
void add_files(CLI::App& sub, RunOptions& o);
/// --layers, --heads, --prompts.
void add_selection(CLI::App& sub, RunOptions& o, const char* group);
/// Device, threads, memory, shards, side tables, --resume and --overwrite.
void add_machine(CLI::App& sub, RunOptions& o, const char* group);

/// Plans, and prints the plan or runs it. Throws Exit where the run ended otherwise than well.
void run(CLI::App& command, RunOptions& o);

}  // namespace kvbench
