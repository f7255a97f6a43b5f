#include "report/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"

namespace kvbench {

std::string csv_line(std::span<const std::string> fields) {
  if (fields.size() == 1 && fields.front().empty()) {
    return "\"\"\n";
  }
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) {
      line += ',';
    }
    if (fields[i].find_first_of(",\"\r\n") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (const char c : fields[i]) {
      if (c == '"') {
        line += '"';
      }
      line += c;
    }
    line += '"';
  }
  line += '\n';
  return line;
}

std::size_t column_position(const Fields& header, std::string_view name,
                            const std::string& source) {
  const auto it = std::ranges::find(header, name);
  if (it == header.end()) {
    throw InputError(fmt::format("{}: column `{}`{} is missing; there are {}", source, name,
                                 did_you_mean(name, header), fmt::join(header, ", ")));
  }
  return static_cast<std::size_t>(it - header.begin());
}

std::string key_of(std::span<const std::string> cells) {
  std::string key;
  for (const std::string& cell : cells) {
    fmt::format_to(std::back_inserter(key), "{}:{},", cell.size(), cell);
  }
  return key;
}

std::string key_of(std::span<const std::string> cells, std::span<const std::size_t> positions) {
  std::string key;
  for (const std::size_t at : positions) {
    key += key_of(cells.subspan(at, 1));
  }
  return key;
}

}  // namespace kvbench
