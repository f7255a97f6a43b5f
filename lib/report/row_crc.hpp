// The two columns that every table of a run ends with, behind its own: `run_id`, which run wrote
// the row, and `row_crc`, the CRC-32 of the row's bytes before that cell (commas and quotes
// included) as 8 hexadecimal digits. CsvWriter adds them; parse_table checks them and takes them
// off.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/schema.hpp"

namespace kvbench {

/// Both columns, for the documentation of tables.
std::span<const ColumnDoc> row_crc_columns();

/// The CSV line of a header with the two columns behind it.
std::string checked_header_line(std::vector<std::string> header);

/// The CSV line of a row with the two cells behind it.
std::string checked_line(std::span<const std::string> fields, std::string_view run);

/// A checked line, whose checksum is right, with another run in it.
std::string line_of_run(std::string_view line, std::string_view run);

/// What `row_crc` says of a row whose bytes before that cell are these.
std::string row_crc(std::string_view bytes);

/// Takes the two columns off a header. False where they are not there; throws InputError (`source`)
/// where one stands alone or anywhere but at the end.
bool take_row_crc_columns(std::vector<std::string>& header, const std::string& source);

/// The number of the first line (from 1) of a text that is a row with the right checksum, 0 where
/// there is none. For what stands behind a quote that never closes.
std::size_t first_whole_row(std::string_view text);

/// The id of all runs of one plan on the same traces, whatever the shard: 12 hexadecimal digits.
/// `what`: the plan's hash, or whatever else decides the rows.
std::string run_id(std::string_view what, std::span<const std::string> trace_sha256);

}  // namespace kvbench
