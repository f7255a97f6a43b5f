#include "replay/result_store.hpp"

#include <fmt/format.h>

#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/output_guard.hpp"
#include "metrics/error.hpp"
#include "replay/resume_check.hpp"
#include "report/journal.hpp"
#include "report/query_bins.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"
#include "trace/file_kinds.hpp"

namespace kvbench {
namespace {

CsvWriter::Mode mode_of(const ReplayOptions& o) {
  return o.resume      ? CsvWriter::Mode::resume
         : o.overwrite ? CsvWriter::Mode::overwrite
                       : CsvWriter::Mode::create;
}

// A job's lines of a table. `rows`: lines of OUT.csv.
std::vector<Fields> lines_of(const TableSpec* table, const JobResult& done,
                             const std::vector<Fields>& rows) {
  std::vector<Fields> out;
  if (table == &main_table()) {
    out = rows;
  } else if (table == &steps_table()) {
    for (std::size_t i = 0; i < done.steps.size(); ++i) {
      for (const Step& step : done.steps[i]) {
        out.push_back(table->line(rows[i], step.position, step.rel_error, step.bytes));
      }
    }
  } else if (table == &queries_table()) {
    for (std::size_t i = 0; i < done.query_errors.size(); ++i) {
      const std::span<const double> errors = done.query_errors[i];
      for (const auto& [first, last] : query_bins(std::ssize(errors))) {
        const Index count = last - first + 1;
        const auto own = errors.subspan(first, count);
        const double sum = std::accumulate(own.begin(), own.end(), 0.0);
        out.push_back(table->line(rows[i], first, last, count, sum / static_cast<double>(count),
                                  percentile(own, 0.5)));
      }
    }
  } else if (table == &every_query_table()) {
    for (std::size_t i = 0; i < done.query_errors.size(); ++i) {
      const auto& errors = done.query_errors[i];
      const Index first = done.rows[i].n_tokens - static_cast<Index>(errors.size());
      for (Index j = 0; j < static_cast<Index>(errors.size()); ++j) {
        out.push_back(table->line(rows[i], first + j, j, errors[j]));
      }
    }
  } else {
    for (const KeptSet& kept : done.kept) {
      out.push_back(table->line(rows.front(), kept.position, ranges_text(kept.tokens)));
    }
  }
  return out;
}

// Files that a run with any options may write: all are checked, and removed on --overwrite.
std::vector<Output> files(const PlanSpec& plan) {
  std::vector<Output> out = run_files(plan.options.out);
  if (!plan.options.export_caches.empty()) {
    out.push_back({plan.options.export_caches, caches_kind()});
    out.push_back({CacheExport::journal_path(plan), journal_kind()});
  }
  return out;
}

// Forgets jobs in all tables that are incomplete in a table or in the caches. `tables`: OUT.csv
// first. `caches`: null if none are exported.
void forget_incomplete(const PlanSpec& plan, std::span<FinishedTable> tables,
                       const CacheExport* caches) {
  const FinishedTable& main = tables.front();
  const auto complete = [&](Index job) {
    if (!main.whole(job)) {
      return false;
    }
    const std::string_view status = main.status(job);
    return std::ranges::all_of(tables.subspan(1),
                               [&](const FinishedTable& side) {
                                 return has_lines(status) ? side.whole(job) : !side.has(job);
                               }) &&
           (caches == nullptr || caches->agrees(job, status));
  };
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    if (!complete(job)) {
      for (FinishedTable& table : tables) {
        table.forget(job);
      }
    }
  }
}

}  // namespace

void ResultStore::check(const PlanSpec& plan) {
  const ReplayOptions& o = plan.options;
  std::vector<std::filesystem::path> inputs(o.traces.begin(), o.traces.end());
  inputs.insert(inputs.end(), o.caches.begin(), o.caches.end());
  inputs.emplace_back(o.config);
  check_outputs(inputs, files(plan));
  check_folder("-o", o.out);
  check_folder("--export-caches", o.export_caches);
  if (o.resume || o.overwrite) {
    return;
  }
  // Also side tables that this plan does not write: they would pass for its own.
  std::vector<std::filesystem::path> existing = existing_tables(o.out);
  if (!o.export_caches.empty() && std::filesystem::exists(o.export_caches)) {
    existing.emplace_back(o.export_caches);
  }
  if (!existing.empty()) {
    throw InputError(fmt::format("{}: exists, expected --resume, --overwrite or another file",
                                 existing.front().string()));
  }
}

ResultStore::ResultStore(const PlanSpec& plan, const Manifest& now) : plan_(plan) {
  const std::string& run = now.run_id;
  const std::string earlier = plan.options.resume && std::filesystem::exists(plan.options.out)
                                  ? check_resumable(plan, now)
                                  : "";
  CacheExport::check_earlier(plan);
  auto lock = std::make_unique<FileLock>(plan.options.out);
  if (plan.options.overwrite) {
    remove_files(files(plan));
  }
  const CsvWriter::Mode mode = mode_of(plan.options);
  std::vector<FinishedTable> before;
  const auto open = [&](const TableSpec* table) {
    FinishedTable& lines = before.emplace_back(plan, table);
    tables_.push_back(
        {table, std::make_unique<CsvWriter>(
                    table->path(plan.options.out), table->header(), mode, run,
                    [&](const TableReader& line) { lines.add(line); }, earlier, std::move(lock))});
  };
  open(&main_table());
  for (const TableSpec* table : side_tables(plan)) {
    open(table);
  }
  if (!plan.options.export_caches.empty()) {
    caches_ = std::make_unique<CacheExport>(plan);
  }
  forget_incomplete(plan, before, caches_.get());
  if (!plan.error_layers.empty()) {
    layers_ = std::make_unique<LayerErrors>(plan, mode, run, earlier);
    for (const Index job : layers_->open(before.front())) {
      for (FinishedTable& table : before) {
        table.forget(job);
      }
    }
  }
  rows_resumed_ = before.front().line_count();
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    if (!before.front().has(job)) {
      open_jobs_.push_back(job);
    }
  }
  for (std::size_t i = tables_.size(); i-- > 0;) {
    if (!before[i].complete() || tables_[i].writer->needs_rewrite()) {
      before[i].rewrite(*tables_[i].writer);  // without lines of incomplete jobs
    }
  }
  remove_leftovers(files(plan));
}

void ResultStore::write(Index job, const JobResult& result) {
  if (caches_) {
    const std::string& status = result.rows.front().status;
    if (result.cache) {
      caches_->write(job, *result.cache);
    } else if (status_kind(status) == "infeasible") {
      HeadCache none;
      none.scoring_queries = result.rows.front().scoring_queries;
      none.infeasible = status.substr(std::string_view("infeasible: ").size());
      caches_->write(job, none);
    }
  }
  std::vector<Fields> rows;
  for (const Row& row : result.rows) {
    rows.push_back(to_fields(row));
  }
  for (std::size_t i = tables_.size(); i-- > 0;) {
    if (i == 0 && layers_) {
      layers_->add(job, result);
    }
    tables_[i].writer->append(lines_of(tables_[i].table, result, rows));
  }
}

void ResultStore::finish_layers(const std::vector<TraceReader>& readers, int threads,
                                const std::atomic<bool>& stop) {
  if (layers_) {
    layers_->finish(readers, threads, stop);
  }
}

RowCounts ResultStore::reconcile() {
  std::vector<FinishedTable> finished;
  for (const Out& out : tables_) {
    FinishedTable& lines = finished.emplace_back(plan_, out.table);
    for (TableReader reader(out.writer->path()); reader.next();) {
      lines.add(reader);
    }
  }
  forget_incomplete(plan_, finished, caches_.get());
  for (std::size_t i = tables_.size(); i-- > 0;) {
    if (!finished[i].unchanged()) {
      finished[i].rewrite(*tables_[i].writer);
    }
  }
  if (layers_) {
    layers_->reconcile();
  }
  const FinishedTable& rows = finished.front();
  return {rows.line_count(), rows.count_of("failed"), rows.count_of("infeasible"),
          rows.count_of("degenerate")};
}

void ResultStore::finish(const std::vector<std::string>& trace_sha256) {
  if (caches_) {
    caches_->finish(trace_sha256);
  }
}

std::map<std::string, std::string> ResultStore::sha256() const {
  std::vector<std::pair<std::string, std::filesystem::path>> files;
  for (const Out& out : tables_) {
    files.emplace_back(out.table->name(), out.writer->path());
  }
  if (layers_) {
    files.emplace_back(layers_table().name(), layers_table().path(plan_.options.out));
  }
  return sha256_of_files(files);
}

void ResultStore::sync() {
  if (layers_) {
    layers_->sync();
  }
  for (std::size_t i = tables_.size(); i-- > 0;) {
    tables_[i].writer->sync();
  }
}

}  // namespace kvbench
