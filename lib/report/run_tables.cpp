#include "report/run_tables.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "report/schema.hpp"
#include "report/sha256.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

void check_header(const Table& table, const Fields& header) {
  const auto [got, expected] =
      std::mismatch(table.header.begin(), table.header.end(), header.begin(), header.end());
  if (expected != header.end()) {
    throw InputError(fmt::format("{}: line 1: got the column `{}`, expected `{}`", table.source,
                                 got == table.header.end() ? "run_id" : *got, *expected));
  }
}

// Without a manifest.
Table read_alone(const fs::path& path, const Fields& header) {
  Table table = read_table(path);
  if (table.checked) {
    check_header(table, header);
  }
  return table;
}

}  // namespace

Table read_run_table(const Manifest& manifest, const std::string& name, const fs::path& path,
                     const Fields& header) {
  const std::string text = read_text_file(path);
  Table table = parse_table(text, path.string());
  if (manifest.run_id.empty() && !table.checked) {
    return table;
  }
  if (!table.checked) {
    throw InputError(
        fmt::format("{}: line 1: its rows carry no checksums, expected the columns "
                    "`run_id` and `row_crc` at the end",
                    path.string()));
  }
  check_header(table, header);
  for (const std::string& run : table.runs) {
    if (run != manifest.run_id) {
      throw InputError(fmt::format("{}: holds rows of run {:.40}, expected {} as in the manifest",
                                   path.string(), run, manifest.run_id));
    }
  }
  if (manifest.sha256) {
    const auto known = manifest.sha256->find(name);
    if (known == manifest.sha256->end()) {
      throw InputError(fmt::format(
          "{}: of another run, expected none: the manifest names no such table", path.string()));
    }
    const std::string got = sha256_text(text);
    if (got != known->second) {
      throw InputError(fmt::format(
          "{}: SHA-256 is {:.16}..., expected {:.16}... as in the manifest (lines were taken out, "
          "added or moved, or it is the table of another run)",
          path.string(), got, known->second));
    }
  }
  return table;
}

Table read_result_table(const fs::path& csv) {
  return fs::exists(manifest_path(csv))
             ? read_run_table(read_manifest(csv), result_table_name, csv, schema_header())
             : read_alone(csv, schema_header());
}

Table read_side_table(const fs::path& path, const SideTable& side) {
  const std::string text = path.string();
  const std::string end = "." + side.name() + ".csv";
  if (text.ends_with(end)) {
    const std::string stem = text.substr(0, text.size() - end.size());
    for (const std::string& csv : {stem + ".csv", stem}) {
      if (fs::exists(manifest_path(csv))) {
        return read_run_table(read_manifest(csv), side.name(), path, side.header());
      }
    }
  }
  return read_alone(path, side.header());
}

std::map<std::string, std::string> sha256_of_files(
    const std::vector<std::pair<std::string, fs::path>>& files) {
  std::map<std::string, std::string> out;
  for (const auto& [name, path] : files) {
    out.emplace(name, sha256_file(path));
  }
  return out;
}

}  // namespace kvbench
