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

/// Writes `output` and its manifest: rows in the plan's order, equal to the undivided file but for
/// timing columns. Side tables that the shards' manifests speak of (a stream's steps, kept tokens)
/// are joined in the same order beside it. Each shard's manifest says which rows of the plan the
/// shard holds. Throws InputError and writes nothing when: a manifest is absent or carries no plan;
/// plans, schemas, traces or shard counts differ; a shard is missing, given twice, unfinished, or
/// being written; ranges overlap or leave a gap; a row stands twice; a side table is absent or
/// does not go with its main one; `output` exists without `overwrite`, or is one of the shards.
/// Throws IoError when writing fails.
MergeResult merge_shards(const MergeOptions& options);

}  // namespace kvbench
