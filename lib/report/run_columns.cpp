#include "report/run_columns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"
#include "core/sha256.hpp"

namespace kvbench {
namespace {

constexpr std::array<ColumnDoc, 2> kColumns = {{
    {"run_id", "",
     "the run that wrote the row: equal for all tables, shards and resumed parts of one plan on "
     "the same traces; `run_id` in the manifest"},
    {"row_crc", "", "empty; earlier than schema 1.7 a checksum of the row"},
}};

// The first column after these two.
constexpr std::string_view kFirstBehind = "model";

// End of the field that begins at `at`: a comma outside quotes, or the line's end.
std::size_t field_end(std::string_view line, std::size_t at) {
  for (bool quoted = false; at < line.size(); ++at) {
    quoted = quoted != (line[at] == '"');
    if (!quoted && (line[at] == ',' || line[at] == '\n' || line[at] == '\r')) {
      break;
    }
  }
  return at;
}

}  // namespace

std::span<const ColumnDoc> run_columns() {
  return kColumns;
}

std::size_t run_columns_place(std::span<const std::string> header) {
  return static_cast<std::size_t>(std::ranges::find(header, kFirstBehind) - header.begin());
}

std::string run_header_line(Fields header) {
  auto at = header.begin() + static_cast<std::ptrdiff_t>(run_columns_place(header));
  for (const ColumnDoc& column : kColumns) {
    at = header.emplace(at, column.name) + 1;
  }
  return csv_line(header);
}

std::string run_line(std::span<const std::string> fields, std::string_view run, std::size_t place) {
  place = std::min(place, fields.size());
  std::string line = csv_line(fields.first(place));
  line.back() = ',';  // was the line end
  line += run;
  line += place < fields.size() ? ",," + csv_line(fields.subspan(place)) : ",\n";
  return line;
}

std::string line_of_run(std::string_view line, std::string_view run, std::size_t place) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < place; ++i) {
    at = field_end(line, at) + 1;
  }
  std::string out(line.substr(0, at));
  out += run;
  return out += line.substr(field_end(line, at));
}

std::size_t line_end(std::string_view text, std::size_t at) {
  for (bool quoted = false; at < text.size(); ++at) {
    quoted = quoted != (text[at] == '"');
    if (!quoted && text[at] == '\n') {
      return at + 1;
    }
  }
  return at;
}

std::optional<std::size_t> remove_run_columns(Fields& header, const std::string& source) {
  const auto& [run, crc] = kColumns;
  const auto at = std::ranges::find(header, run.name);
  const auto place = static_cast<std::size_t>(at - header.begin());
  if (place > 0 && header.size() - place >= kColumns.size() && at[1] == crc.name &&
      (header.size() - place == kColumns.size() || at[2] == kFirstBehind)) {
    header.erase(at, at + kColumns.size());
    return place;
  }
  for (const ColumnDoc& column : kColumns) {
    if (std::ranges::find(header, column.name) != header.end()) {
      throw InputError(
          fmt::format("{}: line 1: got the column `{}` alone or at another position, expected `{}` "
                      "and `{}` before `{}`, or after all others",
                      source, column.name, run.name, crc.name, kFirstBehind));
    }
  }
  return std::nullopt;
}

void check_header(const Fields& header, const Fields& expected, const std::string& source,
                  bool earlier) {
  const auto [got, want] = std::ranges::mismatch(header, expected);
  const bool got_end = got == header.end();
  const bool want_end = want == expected.end();
  const auto appended = expected.begin() + static_cast<std::ptrdiff_t>(run_columns_place(expected));
  if (earlier ? want_end || (got_end && want >= appended) : got_end && want_end) {
    return;
  }
  const auto text = [](bool end, const auto& column) {
    return end ? "the end of the line" : fmt::format("the column `{}`", *column);
  };
  throw InputError(fmt::format("{}: line 1: got {}, expected {}", source, text(got_end, got),
                               text(want_end, want)));
}

std::string run_id(std::string_view what, std::span<const std::string> trace_sha256) {
  return sha256_text(fmt::format("{} {}", what, fmt::join(trace_sha256, " "))).substr(0, 12);
}

}  // namespace kvbench
