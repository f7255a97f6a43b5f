// docs/schema.md as the sources declare its tables and versions (scripts/update_schema_docs.sh).
//   kvbench_schema_docs PAGE           prints the page with its tables written anew
//   kvbench_schema_docs --check PAGE   exit code 1 where that is not the page as it is
// Exit code 2: bad usage, a page that cannot be read, or one that lacks the comment above a table.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replay/cluster_run.hpp"
#include "replay/cluster_tables.hpp"
#include "replay/selection.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"
#include "report/table_reader.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

// A Markdown table: the header's cells, then a line for each column.
std::string table_text(const Fields& header, const std::vector<Fields>& lines) {
  const auto line = [](const Fields& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) {
      out += " ";
      for (const char c : cell) {
        out += c == '|' ? "\\|" : std::string(1, c);
      }
      out += " |";
    }
    return out + "\n";
  };
  std::string out = line(header) + line(Fields(header.size(), "---"));
  for (const Fields& cells : lines) {
    out += line(cells);
  }
  return out;
}

Fields cells_of(const ColumnDoc& c) {
  return {"`" + std::string(c.name) + "`", c.unit.empty() ? "-" : std::string(c.unit),
          std::string(c.doc)};
}

std::string table_text(const std::vector<ColumnDoc>& columns) {
  std::vector<Fields> lines;
  for (const ColumnDoc& c : columns) {
    lines.push_back(cells_of(c));
  }
  return table_text({"column", "unit", "meaning"}, lines);
}

std::string main_table_text() {
  std::vector<Fields> lines;
  for (const Column& c : columns()) {
    Fields cells = cells_of(c);
    cells.emplace_back(c.missing);
    cells.emplace_back(c.key ? "key" : c.timing ? "timing" : "");
    lines.push_back(cells);
  }
  std::string out = table_text({"column", "unit", "meaning", "empty when", "kind"}, lines);
  return out.replace(out.find(" kind "), 6, " ");
}

std::map<std::string, std::string> declared_tables() {
  std::map<std::string, std::string> out = {
      {"OUT.csv", main_table_text()},
      {"all cluster tables", table_text(cluster_place_columns())},
      {"all cluster tables but points.csv, at the end", table_text(cluster_origin_columns())},
      {"OUT.queries.csv of --per-query=all", table_text(every_query_table().own())}};
  for (const TableSpec* table : all_side_tables()) {
    out[table->path("OUT.csv").string()] = table_text(table->own());
  }
  for (const auto& [name, own] : cluster_columns()) {
    out[name] = table_text(own);
  }
  return out;
}

// The place behind `words`, which the page holds.
std::size_t behind(const std::string& page, const std::string& words) {
  const std::size_t at = page.find(words);
  check_input(at != std::string::npos, fmt::format("got a page without `{}`, expected it", words));
  return at + words.size();
}

void put_version(std::string& page, const std::string& before, std::string_view version) {
  const std::size_t begin = behind(page, before + " **");
  page.replace(begin, page.find("**", begin) - begin, version);
}

// A table is the lines that begin with `|` directly below the comment that names it; there may be
// none yet.
std::string documented(std::string page) {
  for (const auto& [name, text] : declared_tables()) {
    const std::size_t begin = behind(page, "<!-- columns: " + name + " -->") + 1;
    std::size_t end = begin;
    while (end < page.size() && page[end] == '|') {
      end = page.find('\n', end) + 1;
    }
    page.replace(begin, end - begin, text);
  }
  put_version(page, "This page describes schema version", schema_version);
  put_version(page, "Cluster tables have version", cluster_schema_version);
  return page;
}

int run(std::span<char*> arguments) {
  const bool check = arguments.size() == 3 && std::string_view(arguments[1]) == "--check";
  check_input(check || arguments.size() == 2, "usage: kvbench_schema_docs [--check] PAGE");
  const std::string page = read_text_file(arguments.back());
  const std::string expected = documented(page);
  if (!check) {
    fmt::print("{}", expected);
    return 0;
  }
  if (page == expected) {
    return 0;
  }
  fmt::print(stderr, "{}: is not what the sources declare: run scripts/update_schema_docs.sh\n",
             arguments.back());
  return 1;
}

}  // namespace
}  // namespace kvbench

int main(int argc, char** argv) {
  try {
    return kvbench::run({argv, static_cast<std::size_t>(argc)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvbench_schema_docs: {}\n", error.what());
    return 2;
  }
}
