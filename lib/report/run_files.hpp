// The files of one result: OUT.csv and those that are named after it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/output_guard.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// The kind of a table with these columns, of any version.
FileKind table_kind(std::string name, const Fields& header);

/// OUT.csv, its manifest and every side table that a run of any options may write.
std::vector<Output> table_files(const std::filesystem::path& csv);

/// The same, the log and the journal of layer errors.
std::vector<Output> run_files(const std::filesystem::path& csv);

/// The tables and the log that exist.
std::vector<std::filesystem::path> existing_tables(const std::filesystem::path& csv);

/// OUT.csv.log, the log of a run that has not ended (report/job_log.hpp).
std::filesystem::path log_path(const std::filesystem::path& csv);

/// OUT.layers.csv.part, the journal of layer errors.
std::filesystem::path layers_journal_path(const std::filesystem::path& csv);

/// Removes the files that exist, in order: OUT.csv first, so that a partial removal leaves no table
/// without its manifest. check_outputs() must have passed. Throws IoError.
void remove_files(const std::vector<Output>& files);

/// Removes unfinished files of a killed run. The caller must hold the lock of the first file.
void remove_leftovers(const std::vector<Output>& files);

}  // namespace kvbench
