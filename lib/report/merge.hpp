// Joins the finished jobs of a plan: the tables of `--shard 1/N ... N/N` (N = 1: of an undivided
// run), and logs of runs that have not ended.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct MergeOptions {
  std::vector<std::filesystem::path> inputs;  ///< OUT.csv or OUT.csv.log, in any order
  std::filesystem::path output;
  bool overwrite = false;    ///< replace an existing output and all that its run left
  bool salvage = false;      ///< skip damaged records of logs
  std::string command_line;  ///< for the merged manifest
};

struct MergeResult {
  Index rows = 0;
  Index failures = 0;   ///< rows with status failed
  Index plan_rows = 0;  ///< of the undivided plan
};

/// Writes `output`, its side tables and its manifest: rows in the plan's order, equal to the
/// undivided files except for timing columns. Without a log among the inputs no row may be missing.
/// Throws InputError and writes nothing if an input is neither a log nor the table of a finished
/// shard; plans, schemas, traces or shard counts differ; a shard is missing or repeated; two inputs
/// have the same row; a trace was written to during a run; a log has a damaged record (without
/// salvage); `output` exists without `overwrite` or is an input. Throws IoError.
MergeResult merge_runs(const MergeOptions& options);

}  // namespace kvbench
