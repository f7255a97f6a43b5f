#include "replay/result_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "replay/cache_export.hpp"
#include "replay/resume_check.hpp"
#include "replay/side_tables.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "trace/file_kinds.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

// Files that a run with any options may write.
std::vector<Output> files(const PlanSpec& plan) {
  std::vector<Output> out = run_files(plan.options.out);
  if (!plan.options.export_caches.empty()) {
    out.push_back({plan.options.export_caches, caches_kind()});
  }
  return out;
}

std::vector<Index> places_of(const PlanSpec& plan) {
  std::vector<Index> out{0};
  for (const Unit& unit : plan.units) {
    out.push_back(out.back() + std::ssize(unit.q_heads) * static_cast<Index>(plan.entries.size()));
  }
  return out;
}

std::string line_of_run(Fields line, const TableSpec& table, const std::string& run) {
  line[table.run_at()] = run;
  return csv_line(line);
}

void move_to_run(JobRecord& record, const std::string& run,
                 const std::vector<const TableSpec*>& tables) {
  for (const TableSpec* table : tables) {
    std::string& text = record.lines[table->name()];
    const Table lines = parse_table(csv_line(table->header()) + text, table->name());
    text.clear();
    for (const Fields& line : lines.rows) {
      text += line_of_run(line, *table, run);
    }
  }
}

// The earlier run's jobs: of its log, or of its tables if it has ended. Null: there is none.
std::unique_ptr<JobRecords> earlier_run(const std::string& csv, bool has_log) {
  if (has_log) {
    return open_log(log_path(csv));
  }
  return fs::exists(csv) ? open_tables(csv, true) : nullptr;
}

}  // namespace

void ResultStore::check(const PlanSpec& plan) {
  const ReplayOptions& o = plan.options;
  std::vector<fs::path> inputs(o.traces.begin(), o.traces.end());
  inputs.insert(inputs.end(), o.caches.begin(), o.caches.end());
  inputs.emplace_back(o.config);
  check_outputs(inputs, files(plan));
  check_folder("-o", o.out);
  check_folder("--export-caches", o.export_caches);
  if (o.resume || o.overwrite) {
    return;
  }
  // Also side tables that this plan does not write: they would pass for its own.
  std::vector<fs::path> existing = existing_tables(o.out);
  if (!o.export_caches.empty() && fs::exists(o.export_caches)) {
    existing.emplace_back(o.export_caches);
  }
  if (!existing.empty()) {
    throw InputError(fmt::format("{}: exists, expected --resume, --overwrite or another file",
                                 existing.front().string()));
  }
}

ResultStore::ResultStore(const PlanSpec& plan, const Manifest& now)
    : plan_(plan),
      run_(now.run_id),
      range_(plan.shard_jobs()),
      lock_(plan.options.out),
      unit_places_(places_of(plan)),
      states_(range_.size(), JobState::open) {
  const ReplayOptions& o = plan.options;
  check(plan);  // again, under the lock: another run may have ended meanwhile
  const bool has_log = log_started(log_path(o.out));
  if (!o.export_caches.empty()) {
    keeps_caches_ = check_earlier_caches(plan) && !has_log;
    caches_lock_.emplace(o.export_caches);
  }
  auto earlier = o.resume ? earlier_run(o.out, has_log) : nullptr;
  const bool same_plan = earlier && check_resumable(plan, earlier->manifest(), now);
  remove_leftovers(files(plan));
  if (same_plan && !has_log && !keep_tables(*earlier)) {
    earlier = earlier_run(o.out, has_log);  // from its first job
  }
  if (earlier && !kept_) {
    take_over(*earlier, now, same_plan, has_log);
  }
  // Tables have no caches: all jobs are taken from them, or none.
  if (!earlier || (!has_log && !o.export_caches.empty() && !open_jobs().empty())) {
    start_anew(now);
  }
  if (!kept_ && !plan.error_layers.empty()) {
    layers_.emplace(plan, run_, earlier != nullptr, states_,
                    [this](Index job) { return log_->has_layer(place(job)); });
  }
  for (Index job = range_.begin; job < range_.end; ++job) {
    rows_resumed_ += state(job) == JobState::open ? 0 : std::ssize(plan.unit_of(job).q_heads);
  }
}

// Removes what would pass for this run's if it were interrupted. Its tables replace the earlier
// ones.
void ResultStore::start_anew(const Manifest& now) {
  std::ranges::fill(states_, JobState::open);
  keeps_caches_ = false;
  std::vector<Output> stale{{layers_journal_path(plan_.options.out), journal_kind()}};
  if (!plan_.options.export_caches.empty()) {
    stale.push_back({plan_.options.export_caches, caches_kind()});
  }
  remove_files(stale);
  log_ = std::make_unique<JobLog>(log_path(plan_.options.out), now, false);
}

// The whole tables of a run of the same plan stay as they are. Returns false if a job must run
// again.
bool ResultStore::keep_tables(JobRecords& earlier) {
  RowCounts rows;
  for (JobRecord record; earlier.next(record);) {
    const Index job = job_at(record.place);
    if (job < 0 || record.lacked_memory || lacks_cache(record)) {
      std::ranges::fill(states_, JobState::open);
      return false;
    }
    state(job) = record.measured() ? JobState::measured : JobState::unmeasured;
    rows.rows += record.rows();
    rows.failed += record.statuses["failed"];
    rows.infeasible += record.statuses["infeasible"];
    rows.degenerate += record.statuses["degenerate"];
  }
  kept_ = {rows, earlier.manifest()};
  return true;
}

// Jobs of the earlier run. They stay in the log of the same plan; others are copied.
void ResultStore::take_over(JobRecords& earlier, const Manifest& now, bool same_plan,
                            bool has_log) {
  const fs::path path = log_path(plan_.options.out);
  std::unordered_map<std::string, Index> by_key;
  for (Index job = range_.begin; job < range_.end && !same_plan; ++job) {
    by_key.emplace(planned_key(plan_, job), job);
  }
  const auto job_of = [&](const JobRecord& record) -> Index {
    const auto found = by_key.find(record.key);
    return same_plan ? job_at(record.place) : found == by_key.end() ? -1 : found->second;
  };
  const std::vector<const TableSpec*> tables = written_tables(now);
  if (!same_plan || !has_log) {
    log_ = std::make_unique<JobLog>(partial_path(path), now, false);
  }
  try {
    for (JobRecord record; earlier.next(record);) {
      const Index job = job_of(record);
      if (job < 0 || record.lacked_memory || lacks_cache(record)) {
        continue;
      }
      state(job) = record.measured() ? JobState::measured : JobState::unmeasured;
      if (!same_plan) {
        record.place = place(job);
        move_to_run(record, run_, tables);
      }
      if (log_) {
        log_->append(std::move(record));
      }
    }
  } catch (...) {
    if (log_) {
      log_->remove();
    }
    throw;
  }
  if (log_) {
    log_->rename(path);
  } else {
    log_ = std::make_unique<JobLog>(path, now, true);
  }
}

bool ResultStore::lacks_cache(const JobRecord& record) const {
  return !plan_.options.export_caches.empty() && record.cache.empty() && !keeps_caches_ &&
         !record.statuses.contains("failed");
}

Index ResultStore::place(Index job) const {
  const auto entries = static_cast<Index>(plan_.entries.size());
  const Index unit = job / entries;
  return unit_places_[unit] + job % entries * std::ssize(plan_.units[unit].q_heads);
}

// The job whose first row is at the place; -1: none of this shard.
Index ResultStore::job_at(Index place) const {
  const Index unit = std::ranges::upper_bound(unit_places_, place) - unit_places_.begin() - 1;
  if (unit < 0 || unit >= std::ssize(plan_.units)) {
    return -1;
  }
  const Index heads = std::ssize(plan_.units[unit].q_heads);
  const Index row = place - unit_places_[unit];
  const Index job = unit * static_cast<Index>(plan_.entries.size()) + row / heads;
  return row % heads == 0 && range_.contains(job) ? job : -1;
}

std::vector<Index> ResultStore::open_jobs() const {
  std::vector<Index> out;
  for (Index i = 0; i < range_.size(); ++i) {
    if (states_[i] == JobState::open) {
      out.push_back(range_.begin + i);
    }
  }
  return out;
}

void ResultStore::write(Index job, const JobResult& result) {
  JobRecord record = job_record(plan_, result, run_);
  record.place = place(job);
  if (!plan_.options.export_caches.empty()) {
    record.cache = exported_cache(result);
  }
  const bool measured = record.measured();
  if (measured && plan_.makes_layer_error(plan_.unit_of(job))) {
    layers_->add(job, result.layer);
  }
  log_->append(std::move(record));
  const std::lock_guard lock(mutex_);
  state(job) = measured ? JobState::measured : JobState::unmeasured;
}

void ResultStore::finish_layers(const std::vector<TraceReader>& readers, int threads,
                                const std::atomic<bool>& stop) {
  if (layers_) {
    layers_->finish(readers, threads, stop, [this](Index job, const Fields& line) {
      log_->append_layer(place(job), line_of_run(line, layers_table(), run_));
    });
  }
}

bool ResultStore::complete() const {
  const std::lock_guard lock(mutex_);
  return open_jobs().empty() && !(layers_ && layers_->lacks_lines());
}

RowCounts ResultStore::publish(Manifest& manifest, bool whole) {
  const std::lock_guard lock(mutex_);
  if (published_) {
    return *published_;
  }
  if (kept_) {
    manifest.rows = kept_->rows.rows;
    manifest.failures = kept_->rows.failed;
    manifest.sha256 = kept_->manifest.sha256;
    write_file_atomically(manifest_path(plan_.options.out), manifest_text(manifest));
    published_ = kept_->rows;
    return kept_->rows;
  }
  if (whole && !plan_.options.export_caches.empty() && !keeps_caches_) {
    export_caches(plan_, trace_hashes(manifest),
                  [this](Index job) { return log_->read(place(job)).cache; });
  }
  if (std::ranges::any_of(manifest.traces, &TraceFile::changed)) {
    log_->append_manifest(manifest);  // the log's rows are no better than the tables'
  }
  RunTables tables(plan_.options.out, written_tables(manifest));
  for (Index job = range_.begin; job < range_.end; ++job) {
    if (state(job) != JobState::open) {
      tables.put(log_->read(place(job)));
    }
  }
  tables.publish(manifest, whole);
  const RowCounts counts{tables.rows(), tables.count("failed"), tables.count("infeasible"),
                         tables.count("degenerate")};
  published_ = counts;
  if (whole) {
    if (layers_) {
      layers_->remove_parts();
    }
    if (plan_.options.keep_log) {
      log_->append_end();
    } else {
      log_->remove();
    }
  }
  return counts;
}

}  // namespace kvbench
