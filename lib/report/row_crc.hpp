// Two columns that every table of a run has beside its own: `run_id`, which run wrote the row, and
// `row_crc`, the CRC-32 of the row's bytes without that cell (commas and quotes included, the line
// end not) as 8 hexadecimal digits. They stand before the column `model` and those appended since,
// and at the end of a table without it, as all tables of schema 1.3 and before are. CsvWriter adds
// them; TableReader checks them and takes them off.
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
std::span<const ColumnDoc> row_crc_columns();

/// How many of a table's own columns stand before the two.
std::size_t row_crc_place(std::span<const std::string> header);

/// The CSV line of a header with the two columns in it.
std::string checked_header_line(Fields header);

/// The CSV line of a row with the two cells in it, behind `place` others or all.
std::string checked_line(std::span<const std::string> fields, std::string_view run,
                         std::size_t place = static_cast<std::size_t>(-1));

/// A checked line, whose checksum is right, with another run in it.
std::string line_of_run(std::string_view line, std::string_view run, std::size_t place);

/// What `row_crc` says of a row whose bytes before and behind that cell are these.
std::string row_crc(std::string_view before, std::string_view behind = {});

/// Takes the two columns off a header, and returns how many stood before them; nothing where they
/// are not there. Throws InputError (`source`) where one stands alone or at another place.
std::optional<std::size_t> remove_row_crc_columns(Fields& header, const std::string& source);

/// The number of the first line (from 1) of a text that is a row with the right checksum, 0 where
/// there is none. For what stands behind a quote that never closes.
std::size_t first_whole_row(std::string_view text);

/// The id of all runs of one plan on the same traces, whatever the shard: 12 hexadecimal digits.
/// `what`: the plan's hash, or whatever else decides the rows.
std::string run_id(std::string_view what, std::span<const std::string> trace_sha256);

}  // namespace kvbench
