#include "report/job_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/archive.hpp"
#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "report/csv.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

template <MaybeConst<JobRecord> Record, class Visit>
void each_member(Record& r, const Visit& visit) {
  visit(r.key);
  visit(r.lacked_memory);
  visit(r.statuses);
  visit(r.lines);
  visit(r.cache);
}

namespace {

namespace fs = std::filesystem;

constexpr Index kManifest = -1;  // number of the record that has the manifest
constexpr Index kEnd = -2;       // of that after all others of a whole run

// A job's record has twice the number of its place, the line of its layer one more.
constexpr Index job_number(Index place) {
  return 2 * place;
}
constexpr Index layer_number(Index place) {
  return 2 * place + 1;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

JobRecord read_record(const Journal& journal, Index place) {
  JobRecord out;
  out.place = place;
  const std::vector<std::byte> bytes = journal.read(job_number(place));
  Unpacker unpacker(bytes);
  pass(unpacker, out);
  unpacker.expect(unpacker.at_end());
  if (journal.has(layer_number(place))) {
    out.lines[layers_table().name()] = text_of(journal.read(layer_number(place)));
  }
  return out;
}

// The cells of a row that all rows of its job have in common.
const std::vector<std::size_t>& job_cells() {
  static const std::vector<std::size_t> cells = [] {
    std::vector<std::size_t> out;
    for (const char* name : {"trace", "prompt", "layer", "kv_head", "algorithm", "params",
                             "budget_requested", "seed"}) {
      out.push_back(column_index(name));
    }
    return out;
  }();
  return cells;
}

constexpr std::size_t kLayerCells = 3;  // of job_cells(): trace, prompt, layer; the KV head follows

void add_head(std::string& heads, const Fields& row) {
  static const std::size_t q_head = column_index("q_head");
  heads += " ";
  heads += row[q_head];
}

Fields job_of(const Fields& row) {
  Fields out;
  for (const std::size_t cell : job_cells()) {
    out.push_back(row[cell]);
  }
  return out;
}

bool is_of_job(const Fields& row, const Fields& job) {
  return std::ranges::equal(job_cells(), job, {},
                            [&](std::size_t cell) -> const std::string& { return row[cell]; });
}

class LogRecords : public JobRecords {
 public:
  LogRecords(const fs::path& path, Journal::Damage damage)
      : journal_(path, damage), numbers_(journal_.numbers()) {
    check_input(journal_.has(kManifest),
                path.string() + ": has no manifest, expected the log of a run");
    set_manifest(manifest_from_text(text_of(journal_.read(kManifest)), path.string()), path);
    std::erase_if(numbers_, [](Index number) { return number < 0 || number % 2 != 0; });
  }

  bool whole() const override { return journal_.has(kEnd); }

  bool next(JobRecord& record) override {
    if (at_ == numbers_.size()) {
      return false;
    }
    record = read_record(journal_, numbers_[at_++] / 2);
    return true;
  }

 private:
  Journal journal_;
  std::vector<Index> numbers_;  // of jobs
  std::size_t at_ = 0;
};

// Rows of a job are consecutive, and so are its lines of a side table.
class TableRecords : public JobRecords {
 public:
  TableRecords(const fs::path& csv, std::unique_ptr<FileLock> lock)
      : csv_(csv), lock_(std::move(lock)) {
    set_manifest(read_manifest(csv), csv);
    check_input(manifest_.end && manifest_.sha256,
                fmt::format("{}: the run has not ended, expected its log, OUT.csv.log, or a run "
                            "that has",
                            csv.string()));
    const std::vector<Range>& ranges = manifest_.plan->row_ranges;
    check_input(ranges.size() == 1,
                fmt::format("{}: {} row ranges, expected one", csv.string(), ranges.size()));
    rows_ = ranges.front();
    check_input(0 <= rows_.begin && rows_.begin <= rows_.end && rows_.end <= manifest_.plan->rows,
                fmt::format("{}: row range [{}, {}) lies outside the plan's {} rows", csv.string(),
                            rows_.begin, rows_.end, manifest_.plan->rows));
    for (const TableSpec* table : written_tables(manifest_)) {
      open(*table);
    }
  }

  bool whole() const override { return true; }

  bool next(JobRecord& record) override {
    record = {};
    Open& main = tables_.front();
    if (!main.more) {
      for (const Open& side : tables_) {
        check_input(!side.more,
                    fmt::format("{}: line {}: no row of {} has this line", side.reader->source(),
                                side.reader->row_line(), csv_.string()));
      }
      check_input(taken_ == rows_.size(), fmt::format("{}: {} rows, expected {} as in the manifest",
                                                      csv_.string(), taken_, rows_.size()));
      return false;
    }
    const Fields job = job_of(main.reader->row());
    if (layer_.empty() || !std::equal(job.begin(), job.begin() + kLayerCells, layer_.begin())) {
      layer_ = job;
    }
    static const std::size_t status = column_index("status");
    std::string& lines = record.lines[main_table().name()];
    std::string heads;
    record.place = rows_.begin + taken_;
    do {
      const Fields& row = main.reader->row();
      if (taken_ == rows_.size()) {
        throw InputError(
            fmt::format("{}: more rows than the {} of the manifest", csv_.string(), rows_.size()));
      }
      record.count(row[status]);
      add_head(heads, row);
      for (std::size_t t = 1; t < tables_.size(); ++t) {
        std::string& text = record.lines[tables_[t].table->name()];
        // A line of a layer is with the first row of its first KV head.
        if (tables_[t].table->steps() ||
            (lines.empty() && job[kLayerCells] == layer_[kLayerCells])) {
          take_lines(tables_[t], row, text);
        }
      }
      lines += main.reader->text();
      ++taken_;
      main.more = main.reader->next();
    } while (main.more && is_of_job(main.reader->row(), job));
    record.key = key_of(job) + heads;
    return true;
  }

 private:
  struct Open {
    const TableSpec* table;
    std::unique_ptr<TableReader> reader;
    bool more;
  };

  // Appends the row's lines to `text`.
  static void take_lines(Open& side, const Fields& row, std::string& text) {
    const std::string mine = side.table->key_of_row(row);
    while (side.more && side.table->key(side.reader->row()) == mine) {
      text += side.reader->text();
      side.more = side.reader->next();
      if (!side.table->steps()) {
        break;
      }
    }
  }

  void open(const TableSpec& table) {
    auto reader = open_run_table(manifest_, table, table.path(csv_));
    check_header(reader->header(), table, reader->source());
    const bool more = reader->next();
    tables_.push_back({&table, std::move(reader), more});
  }

  fs::path csv_;
  std::unique_ptr<FileLock> lock_;
  std::vector<Open> tables_;  // OUT.csv first
  Range rows_;                // of the undivided table
  Fields layer_;              // job_of() the layer's first row
  Index taken_ = 0;           // rows read
};

}  // namespace

void JobRecords::set_manifest(Manifest manifest, const fs::path& path) {
  manifest_ = std::move(manifest);
  check_input(
      manifest_.plan.has_value(),
      fmt::format("{}: the manifest has no plan, expected that of a replay", path.string()));
  check_input(
      manifest_.schema == schema_version,
      fmt::format("{}: schema {}, expected {}", path.string(), manifest_.schema, schema_version));
  try {
    written_tables(manifest_);
  } catch (const nlohmann::json::exception& error) {  // an option of another type
    throw InputError(
        fmt::format("{}: the manifest's configuration: {}", path.string(), error.what()));
  }
}

void JobRecord::count(std::string_view status) {
  lacked_memory = status == kLackedMemory;
  ++statuses[std::string(status_kind(status))];
}

bool JobRecord::measured() const {
  return std::ranges::any_of(statuses, [](const auto& one) { return has_lines(one.first); });
}

Index JobRecord::rows() const {
  Index out = 0;
  for (const auto& [status, count] : statuses) {
    out += count;
  }
  return out;
}

std::string job_key(const std::vector<Fields>& rows) {
  std::string heads;
  for (const Fields& row : rows) {
    add_head(heads, row);
  }
  return key_of(job_of(rows.front())) + heads;
}

JobLog::JobLog(const fs::path& path, const Manifest& manifest, bool resume)
    : journal_(path, manifest.run_id, resume, Journal::Damage::refuse) {
  append_manifest(manifest);
}

void JobLog::append(JobRecord record) {
  const auto layer = record.lines.extract(layers_table().name());
  if (layer && !layer.mapped().empty()) {
    append_layer(record.place, layer.mapped());
  }
  Packer packer;
  pass(packer, record);
  journal_.append(job_number(record.place), packer.bytes);
}

void JobLog::append_layer(Index place, std::string_view line) {
  journal_.append(layer_number(place), bytes_of(line));
}

bool JobLog::has_layer(Index place) const {
  return journal_.has(layer_number(place));
}

void JobLog::append_manifest(const Manifest& manifest) {
  journal_.append(kManifest, bytes_of(manifest_text(manifest)));
}

void JobLog::append_end() {
  journal_.append(kEnd, {});
}

JobRecord JobLog::read(Index place) const {
  return read_record(journal_, place);
}

bool log_started(const fs::path& path) {
  std::error_code error;
  return fs::file_size(path, error) > 0 && !error && Journal::has_records(path);
}

std::unique_ptr<JobRecords> open_log(const fs::path& path, Journal::Damage damage) {
  return std::make_unique<LogRecords>(path, damage);
}

std::unique_ptr<JobRecords> open_tables(const fs::path& csv, bool locked) {
  return std::make_unique<TableRecords>(csv, locked ? nullptr : lock_where_possible(csv));
}

RunTables::RunTables(const fs::path& csv, const std::vector<const TableSpec*>& tables) : csv_(csv) {
  for (const TableSpec* table : tables) {
    StagedFile& file = files_.emplace_back(table->name(), StagedFile(table->path(csv))).second;
    file.put(csv_line(table->header()));
  }
}

void RunTables::put(const JobRecord& record) {
  for (auto& [name, file] : files_) {
    const auto lines = record.lines.find(name);
    if (lines != record.lines.end()) {
      file.put(lines->second);
    }
  }
  for (const auto& [status, count] : record.statuses) {
    rows_ += count;
    statuses_[status] += count;
  }
}

Index RunTables::count(std::string_view status) const {
  const auto found = statuses_.find(std::string(status));
  return found == statuses_.end() ? 0 : found->second;
}

void RunTables::publish(Manifest& manifest, bool whole) {
  std::vector<std::pair<std::string, fs::path>> unfinished;
  for (auto& [name, file] : files_) {
    file.close();
    unfinished.emplace_back(name, file.partial());
  }
  manifest.rows = rows_;
  manifest.failures = count("failed");
  manifest.sha256.reset();
  if (whole) {
    manifest.sha256 = sha256_of_files(unfinished);
  }
  StagedFile manifest_file(manifest_path(csv_), manifest_text(manifest));
  remove_files(table_files(csv_));
  for (std::size_t i = files_.size(); i-- > 1;) {
    files_[i].second.publish();
  }
  manifest_file.publish();
  files_.front().second.publish();
}

}  // namespace kvbench
