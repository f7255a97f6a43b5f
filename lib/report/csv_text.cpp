// CSV as text: lines from fields, and tables from lines. csv.cpp has the files.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "report/csv.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

std::size_t Table::column(std::string_view name) const {
  const auto it = std::find(header.begin(), header.end(), name);
  if (it == header.end()) {
    throw InputError(
        fmt::format("{}: column `{}`{} is missing", source, name, did_you_mean(name, header)));
  }
  return static_cast<std::size_t>(it - header.begin());
}

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

Table whole_table(TableReader& reader) {
  Table table;
  table.source = reader.source();
  table.header = reader.header();
  table.checked = reader.checked();
  while (reader.next()) {
    table.rows.push_back(reader.row());
    if (table.checked) {
      table.runs.insert(reader.run());
    }
  }
  return table;
}

Table parse_table(std::string_view text, const std::string& source) {
  TableReader reader(std::make_unique<std::istringstream>(std::string(text)), source);
  return whole_table(reader);
}

Table read_table(const std::filesystem::path& path) {
  TableReader reader(path);
  return whole_table(reader);
}

}  // namespace kvbench
