// The files of one result: OUT.csv and those that are named after it.
#pragma once

#include <filesystem>
#include <vector>

#include "core/output_guard.hpp"

namespace kvbench {

/// OUT.csv, its manifest, every side table and the journal of layer errors: all that a run of any
/// options may write.
std::vector<Output> run_files(const std::filesystem::path& csv);

/// The tables among them that exist.
std::vector<std::filesystem::path> existing_tables(const std::filesystem::path& csv);

/// OUT.layers.csv.part, the journal of layer errors.
std::filesystem::path layers_journal_path(const std::filesystem::path& csv);

/// Removes the files that exist, in order: OUT.csv first, so that a partial removal leaves no table
/// without its manifest. check_outputs() must have passed. Throws IoError.
void remove_files(const std::vector<Output>& files);

/// Removes unfinished files of a killed run. The caller must hold the lock of the first file.
void remove_leftovers(const std::vector<Output>& files);

}  // namespace kvbench
