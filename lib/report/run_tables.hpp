// Tables of runs as readers trust them: whole files by the manifest's SHA-256, side tables only if
// they are of the same run.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/table_reader.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

/// Opens a table of the run of this manifest. Throws InputError if a trace was written to during
/// the run or the header differs. next() throws InputError for a row of another run and, after the
/// last row, if the finished file is another or the manifest has no such table.
std::unique_ptr<TableReader> open_run_table(const Manifest& manifest, const TableSpec& table,
                                            const std::filesystem::path& path);

/// Opens OUT.csv with its manifest; without one, only rows and columns are checked. Errors: as of
/// open_run_table and read_manifest.
std::unique_ptr<TableReader> open_result_table(const std::filesystem::path& csv);

/// The same for a side table, such as OUT.kept.csv.
std::unique_ptr<TableReader> open_side_table(const std::filesystem::path& path,
                                             const TableSpec& side);

/// The side tables that a run of this manifest may have; OUT.queries.csv in its form.
std::array<const TableSpec*, 4> side_tables_of(const Manifest& manifest);

/// The tables that the run of this manifest writes, OUT.csv first.
std::vector<const TableSpec*> written_tables(const Manifest& manifest);

/// Throws InputError (`source`) for the first column of `header` that differs from `expected`.
/// `earlier`: columns after row_crc may be missing, and others may follow.
void check_header(const Fields& header, const TableSpec& expected, const std::string& source,
                  bool earlier = false);

/// SHA-256 of files by their names, for a manifest. Errors: as of sha256_file.
std::map<std::string, std::string> sha256_of_files(
    const std::vector<std::pair<std::string, std::filesystem::path>>& files);

}  // namespace kvbench
