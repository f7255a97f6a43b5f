// Tables as readers trust them: rows by their own checksums, the whole file by the manifest's, and
// a side table only beside the table of the run that wrote it.
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
#include "report/side_table.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// What a manifest's `sha256` calls OUT.csv; a side table has its own name.
inline constexpr const char* result_table_name = "table";

/// A file of the run of this manifest. Throws InputError where the columns are not `header` and
/// others behind; its next() where a row was changed or is of another run and, behind the last row,
/// where the finished file is another or the manifest names no such table. Of a manifest before
/// schema 1.2 none of this is known, and nothing checked.
std::unique_ptr<TableReader> open_run_table(const Manifest& manifest, const std::string& name,
                                            const std::filesystem::path& path,
                                            const Fields& header);

/// OUT.csv, by its manifest where there is one; else rows and columns alone are checked. Errors: as
/// above; InputError for a manifest that cannot be read.
std::unique_ptr<TableReader> open_result_table(const std::filesystem::path& csv);

/// The tables that a run of this manifest wrote, or would have, beside OUT.csv: OUT.queries.csv in
/// its form. (A manifest before schema 1.4 has `true` for a line per query.)
std::array<const SideTable*, 4> side_tables_of(const Manifest& manifest);

/// A side table by its own name, such as OUT.kept.csv, in the same way.
std::unique_ptr<TableReader> open_side_table(const std::filesystem::path& path,
                                             const SideTable& side);

/// SHA-256 of files by their names, for a manifest. Errors: as sha256_file.
std::map<std::string, std::string> sha256_of_files(
    const std::vector<std::pair<std::string, std::filesystem::path>>& files);

}  // namespace kvbench
