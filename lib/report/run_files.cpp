#include "report/run_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "report/journal.hpp"
#include "report/manifest.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

FileKind kind_of(const TableSpec& table) {
  return table_kind(
      table.is_side() ? fmt::format("a table OUT.{}.csv", table.name()) : "a result table",
      table.header());
}

// OUT.queries.csv has two forms.
FileKind queries_kind() {
  FileKind out = kind_of(queries_table());
  const FileKind every = kind_of(every_query_table());
  out.matches = [bins = out.matches, every = every.matches](const fs::path& path) {
    return bins(path) || every(path);
  };
  out.begins = [bins = out.begins, every = every.begins](std::string_view text) {
    return bins(text) || every(text);
  };
  return out;
}

std::vector<Output> tables(const fs::path& csv) {
  std::vector<Output> out{{csv, kind_of(main_table())}};
  for (const TableSpec* table : all_side_tables()) {
    out.push_back({table->path(csv), table == &queries_table() ? queries_kind() : kind_of(*table)});
  }
  return out;
}

// Checks the kind again: another file may have got this name since check_outputs().
void remove_one(const fs::path& path, const std::function<bool(const fs::path&)>& is_ours) {
  std::error_code error;
  if (fs::is_regular_file(fs::symlink_status(path, error))) {
    if (fs::file_size(path, error) > 0 && !is_ours(path)) {
      throw IoError(fmt::format(
          "{}: another file got this name since the run began; it is not removed", path.string()));
    }
    fs::remove(path, error);
  } else {
    error.clear();  // nothing is there
  }
  if (error) {
    throw IoError(fmt::format("{}: cannot remove it: {}", path.string(), error.message()));
  }
}

}  // namespace

// By the columns that tables of all versions start with.
FileKind table_kind(std::string name, const Fields& header) {
  const auto own = std::ranges::find(header, "run_id") - header.begin();
  std::string line = csv_line(std::span(header).first(static_cast<std::size_t>(own)));
  line.pop_back();
  return text_kind(std::move(name), line);
}

fs::path log_path(const fs::path& csv) {
  return fs::path(csv) += ".log";
}

fs::path layers_journal_path(const fs::path& csv) {
  return layers_table().path(csv) += ".part";
}

std::vector<Output> table_files(const fs::path& csv) {
  std::vector<Output> out = tables(csv);
  out.insert(out.begin() + 1, {manifest_path(csv), manifest_kind()});
  return out;
}

std::vector<Output> run_files(const fs::path& csv) {
  std::vector<Output> out = table_files(csv);
  out.push_back({log_path(csv), journal_kind()});
  out.push_back({layers_journal_path(csv), journal_kind()});
  return out;
}

std::vector<fs::path> existing_tables(const fs::path& csv) {
  std::vector<fs::path> out;
  for (const Output& table : tables(csv)) {
    if (fs::exists(table.path)) {
      out.push_back(table.path);
    }
  }
  if (fs::exists(log_path(csv))) {
    out.push_back(log_path(csv));
  }
  return out;
}

void remove_files(const std::vector<Output>& files) {
  for (const Output& file : files) {
    remove_one(resolved_path(file.path), file.kind.matches);
  }
}

void remove_leftovers(const std::vector<Output>& files) {
  for (const Output& file : files) {
    remove_one(partial_path(resolved_path(file.path)), [&](const fs::path& path) {
      return file.kind.begins(first_bytes(path, kKindBytes));
    });
  }
}

}  // namespace kvbench
