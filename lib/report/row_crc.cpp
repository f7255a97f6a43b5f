#include "report/row_crc.hpp"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"
#include "report/csv.hpp"
#include "report/sha256.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kDigits = 8;

constexpr std::array<ColumnDoc, 2> kColumns = {{
    {"run_id", "",
     "the run that wrote the row: equal for all tables, shards and resumed parts of one plan on "
     "the "
     "same traces; `run_id` in the manifest"},
    {"row_crc", "",
     "CRC-32 of the row's bytes before this cell, commas and quotes included; 8 hexadecimal "
     "digits"},
}};

}  // namespace

std::span<const ColumnDoc> row_crc_columns() {
  return kColumns;
}

std::string checked_header_line(std::vector<std::string> header) {
  for (const ColumnDoc& column : kColumns) {
    header.emplace_back(column.name);
  }
  return csv_line(header);
}

namespace {

// `cells` end with a comma.
std::string with_run(std::string cells, std::string_view run) {
  cells += run;
  cells += ',';
  cells += row_crc(cells);
  cells += '\n';
  return cells;
}

}  // namespace

std::string checked_line(std::span<const std::string> fields, std::string_view run) {
  std::string line = csv_line(fields);
  line.back() = ',';  // was the line end
  return with_run(std::move(line), run);
}

std::string line_of_run(std::string_view line, std::string_view run) {
  const std::size_t crc = line.rfind(',');
  return with_run(std::string(line.substr(0, line.rfind(',', crc - 1) + 1)), run);
}

std::string row_crc(std::string_view bytes) {
  return fmt::format("{:08x}", libdeflate_crc32(0, bytes.data(), bytes.size()));
}

bool take_row_crc_columns(std::vector<std::string>& header, const std::string& source) {
  const auto& [run, crc] = kColumns;
  const std::size_t n = header.size();
  if (n > kColumns.size() && header[n - 2] == run.name && header[n - 1] == crc.name) {
    header.resize(n - kColumns.size());
    return true;
  }
  for (const ColumnDoc& column : kColumns) {
    if (std::ranges::find(header, column.name) != header.end()) {
      throw InputError(
          fmt::format("{}: line 1: got the column `{}` alone or at another place, "
                      "expected `{}` and `{}` behind all others",
                      source, column.name, run.name, crc.name));
    }
  }
  return false;
}

std::size_t first_whole_row(std::string_view text) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (end != std::string_view::npos && line.size() > kDigits) {
      const std::size_t cell = line.size() - kDigits;
      if (row_crc(line.substr(0, cell)) == line.substr(cell)) {
        return number;
      }
    }
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return 0;
}

std::string run_id(std::string_view what, std::span<const std::string> trace_sha256) {
  return sha256_text(fmt::format("{} {}", what, fmt::join(trace_sha256, " "))).substr(0, 12);
}

}  // namespace kvbench
