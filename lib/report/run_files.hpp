// The files of one result: OUT.csv and all that stands beside it under names made of its own.
#pragma once

#include <filesystem>
#include <vector>

#include "core/output_guard.hpp"

namespace kvbench {

/// OUT.csv first, then its manifest, every side table, and the journal of the layers' errors:
/// whatever a run of any options may write there.
std::vector<Output> run_files(const std::filesystem::path& csv);

/// Those of them that are tables and exist.
std::vector<std::filesystem::path> existing_tables(const std::filesystem::path& csv);

/// Where the layers' parts wait for their layer: OUT.layers.csv.part.
std::filesystem::path layers_journal_path(const std::filesystem::path& csv);

/// Removes the files that exist, in their order: without the table, what is left of a removal that
/// was cut short stands beside nothing. check_outputs() must have passed, so that all of them are
/// kvbench's own. Throws IoError.
void remove_files(const std::vector<Output>& files);

/// Removes what a killed run left of files that it had not finished. Whoever calls it holds the
/// lock of the first of them.
void remove_leftovers(const std::vector<Output>& files);

}  // namespace kvbench
