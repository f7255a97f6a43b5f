// Two columns that every table of a run has besides its own: `run_id`, the run that wrote the row,
// and `row_crc`, empty since schema 1.7 and gone in schema 2. They come before the column `model`;
// in a table without it they are the last. CsvWriter adds them; TableReader removes them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "report/csv_text.hpp"
#include "report/schema.hpp"

namespace kvbench {

/// Both columns, for the documentation of tables.
std::span<const ColumnDoc> run_columns();

/// Number of a table's own columns before the two.
std::size_t run_columns_place(std::span<const std::string> header);

/// The CSV line of a header with the two columns.
std::string run_header_line(Fields header);

/// The CSV line of a row with the two cells after `place` others (default: all).
std::string run_line(std::span<const std::string> fields, std::string_view run,
                     std::size_t place = static_cast<std::size_t>(-1));

/// A line of run_line() with another run.
std::string line_of_run(std::string_view line, std::string_view run, std::size_t place);

/// End of the CSV line that begins at `at`, after its line end.
std::size_t line_end(std::string_view text, std::size_t at);

/// Removes the two columns from a header. Returns the number of columns before them, or nothing if
/// there are none. Throws InputError (`source`) if only one is there, or at another position.
std::optional<std::size_t> remove_run_columns(Fields& header, const std::string& source);

/// Throws InputError (`source`) for the first column of `header` that differs from `expected`.
/// `earlier`: columns that were appended to the schema since may be missing, and later ones follow.
void check_header(const Fields& header, const Fields& expected, const std::string& source,
                  bool earlier = false);

/// The id of all runs of one plan on the same traces, for every shard: 12 hexadecimal digits.
/// `what`: the plan's hash, or another text that determines the rows.
std::string run_id(std::string_view what, std::span<const std::string> trace_sha256);

}  // namespace kvbench
