// Joins the result files of `--shard 1/N ... N/N` into the file that one undivided run writes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct MergeOptions {
  std::vector<std::filesystem::path> shards;  ///< in any order
  std::filesystem::path output;
  bool overwrite = false;    ///< replace an existing output
  std::string command_line;  ///< for the merged manifest
};

struct MergeResult {
  Index rows = 0;
  Index failures = 0;  ///< rows with status failed
};

/// Writes `output`, its side tables and its manifest: rows in the plan's order, equal to the
/// undivided files except for timing columns. Throws InputError and writes nothing if a manifest is
/// absent or has no plan; plans, schemas, traces or shard counts differ; a shard is missing,
/// repeated, unfinished or being written; row ranges overlap or leave a gap; a row is duplicate; a
/// side table is absent or does not match its rows; `output` exists without `overwrite` or is one
/// of the shards. Throws IoError.
MergeResult merge_shards(const MergeOptions& options);

}  // namespace kvbench
