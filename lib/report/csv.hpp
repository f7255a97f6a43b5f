// CSV text after RFC 4180. Lines end in "\n". A field is quoted when it holds a comma, a quote, CR
// or LF; quotes inside are doubled. UTF-8, no BOM.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench {

using Fields = std::vector<std::string>;

/// One CSV line with its "\n". A lone empty field is written `""`, as an empty line is no record.
std::string csv_line(std::span<const std::string> fields);

/// Position of a column. Throws InputError naming `source`, the column and those that there are.
std::size_t column_position(const Fields& header, std::string_view name, const std::string& source);

/// Text that is equal for equal cells only: each cell follows its length.
std::string key_of(std::span<const std::string> cells);
/// The same of the cells at these positions.
std::string key_of(std::span<const std::string> cells, std::span<const std::size_t> positions);

}  // namespace kvbench
