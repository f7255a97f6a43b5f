// Options shared by `replay` and `evaluate` (heads, device, files), and their run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "replay/plan.hpp"

namespace kvbench {

struct RunOptions {
  ReplayOptions replay;
  std::string per_query{name(ReplayOptions{}.per_query)};
  bool dry_run = false;
  bool evaluates = false;  ///< evaluates caches instead of algorithms
};

/// Traces, output, --config and --dry-run.
void add_files(CLI::App& sub, RunOptions& o);
/// Device, threads, memory, shards, side tables, --resume and --overwrite.
void add_machine(CLI::App& sub, RunOptions& o, const char* group);

/// Makes a plan, and prints or runs it. Throws Exit unless all rows are done.
void run(CLI::App& command, RunOptions& o);

}  // namespace kvbench
