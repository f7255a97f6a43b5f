#include "report/run_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/sha256.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

// Checks the run of each row and, at the end, the SHA-256 if known; "": expected no file.
class RunTable : public TableReader {
 public:
  RunTable(const fs::path& path, const TableSpec& table, std::string run,
           std::optional<std::string> sha256)
      : TableReader(path),
        run_at_(table.run_at()),
        run_(std::move(run)),
        sha256_(std::move(sha256)) {
    check_header(header(), table, source(), true);
  }

  bool next() override {
    const bool there = TableReader::next();
    if (there && row()[run_at_] != run_) {
      throw InputError(fmt::format("{}: holds rows of run {:.40}, expected {} as in the manifest",
                                   source(), row()[run_at_], run_));
    }
    if (!there && sha256_) {
      const std::string expected = *std::exchange(sha256_, std::nullopt);
      if (expected.empty()) {
        throw InputError(fmt::format(
            "{}: of another run, expected none: the manifest names no such table", source()));
      }
      const std::string got = sha256();
      if (got != expected) {
        throw InputError(fmt::format(
            "{}: SHA-256 is {:.16}..., expected {:.16}... as in the manifest (lines were taken "
            "out, added or moved, or it is the table of another run)",
            source(), got, expected));
      }
    }
    return there;
  }

 private:
  std::size_t run_at_;
  std::string run_;
  std::optional<std::string> sha256_;
};

std::unique_ptr<TableReader> open_without_manifest(const fs::path& path, const TableSpec& table) {
  auto reader = std::make_unique<TableReader>(path);
  if (std::ranges::find(reader->header(), "run_id") != reader->header().end()) {
    check_header(reader->header(), table, reader->source(), true);
  }
  return reader;
}

}  // namespace

std::unique_ptr<TableReader> open_run_table(const Manifest& manifest, const TableSpec& table,
                                            const fs::path& path) {
  check_traces_unchanged(manifest, path);
  std::optional<std::string> sha256;
  if (manifest.sha256) {
    const auto known = manifest.sha256->find(table.name());
    sha256 = known == manifest.sha256->end() ? "" : known->second;
  }
  return std::make_unique<RunTable>(path, table, manifest.run_id, std::move(sha256));
}

std::unique_ptr<TableReader> open_result_table(const fs::path& csv) {
  return fs::exists(manifest_path(csv)) ? open_run_table(read_manifest(csv), main_table(), csv)
                                        : open_without_manifest(csv, main_table());
}

std::array<const TableSpec*, 4> side_tables_of(const Manifest& manifest) {
  std::array<const TableSpec*, 4> out = all_side_tables();
  const nlohmann::json& c = manifest.configuration;
  if (c.is_object() && c.contains("per_query") && c.at("per_query") != "bins") {
    std::ranges::replace(out, &queries_table(), &every_query_table());
  }
  return out;
}

std::vector<const TableSpec*> written_tables(const Manifest& manifest) {
  const nlohmann::json c =
      manifest.configuration.is_object() ? manifest.configuration : nlohmann::json::object();
  std::vector<const TableSpec*> out{&main_table()};
  for (const TableSpec* table : side_tables_of(manifest)) {
    if (table == &steps_table()    ? c.value("protocol", "") == "stream"
        : table == &kept_table()   ? c.value("kept", false)
        : table == &layers_table() ? c.value("layer_errors", false)
                                   : c.value("per_query", nlohmann::json(false)) != false) {
      out.push_back(table);
    }
  }
  return out;
}

std::unique_ptr<TableReader> open_side_table(const fs::path& path, const TableSpec& side) {
  const std::string text = path.string();
  const std::string end = "." + side.name() + ".csv";
  if (text.ends_with(end)) {
    const std::string stem = text.substr(0, text.size() - end.size());
    for (const std::string& csv : {stem + ".csv", stem}) {
      if (fs::exists(manifest_path(csv))) {
        return open_run_table(read_manifest(csv), side, path);
      }
    }
  }
  return open_without_manifest(path, side);
}

void check_header(const Fields& header, const TableSpec& expected, const std::string& source,
                  bool earlier) {
  const auto [got, want] = std::ranges::mismatch(header, expected.header());
  const bool got_end = got == header.end();
  const bool want_end = want == expected.header().end();
  const auto fewest = static_cast<std::ptrdiff_t>(expected.run_at() + 2);  // with row_crc
  const bool appended = want - expected.header().begin() >= fewest;
  if (earlier ? want_end || (got_end && appended) : got_end && want_end) {
    return;
  }
  const auto text = [](bool end, const auto& column) {
    return end ? "the end of the line" : fmt::format("the column `{}`", *column);
  };
  throw InputError(fmt::format("{}: line 1: got {}, expected {}", source, text(got_end, got),
                               text(want_end, want)));
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
