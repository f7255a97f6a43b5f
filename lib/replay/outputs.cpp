#include "replay/outputs.hpp"

#include <string_view>

#include "report/kept.hpp"
#include "report/layers.hpp"
#include "report/queries.hpp"
#include "report/schema.hpp"
#include "report/steps.hpp"

namespace kvbench {
namespace {

CsvWriter::Mode mode_of(const ReplayOptions& o) {
  return o.resume      ? CsvWriter::Mode::resume
         : o.overwrite ? CsvWriter::Mode::overwrite
                       : CsvWriter::Mode::create;
}

// A job's lines of a side table; `rows`: those of the main one.
std::vector<Fields> lines_of(const SideTable& table, const JobResult& done,
                             const std::vector<Fields>& rows) {
  std::vector<Fields> out;
  if (&table == &steps_table()) {
    for (std::size_t i = 0; i < done.steps.size(); ++i) {
      for (const Step& step : done.steps[i]) {
        out.push_back(step_fields(rows[i], step));
      }
    }
  } else if (&table == &queries_table()) {
    for (std::size_t i = 0; i < done.query_errors.size(); ++i) {
      const auto& errors = done.query_errors[i];
      const Index first = done.rows[i].n_tokens - static_cast<Index>(errors.size());
      for (std::size_t j = 0; j < errors.size(); ++j) {
        const auto offset = static_cast<Index>(j);
        out.push_back(query_fields(rows[i], first + offset, offset, errors[j]));
      }
    }
  } else {
    for (const KeptSet& kept : done.kept) {
      out.push_back(kept_fields(rows.front(), kept));
    }
  }
  return out;
}

// Replaces a table's rows where they are not these.
void put(CsvWriter& writer, const std::vector<Fields>& there, const std::vector<Fields>& sorted) {
  if (sorted != there) {
    writer.rewrite_sorted(sorted);
  }
}

}  // namespace

std::vector<std::filesystem::path> Outputs::files(const Plan& plan) {
  std::vector<std::filesystem::path> out = {plan.options.out};
  for (const SideTable* table : side_tables(plan)) {
    out.push_back(table->path(plan.options.out));
  }
  if (!plan.options.export_caches.empty()) {
    out.emplace_back(plan.options.export_caches);
  }
  if (!plan.error_layers.empty()) {
    out.push_back(layers_table().path(plan.options.out));
  }
  return out;
}

Outputs::Outputs(const Plan& plan)
    : plan_(CacheExport::check_earlier(plan)),
      writer_(plan.options.out, schema_header(), mode_of(plan.options)),
      before_(plan, writer_.existing()) {
  std::vector<SideProgressed> lines;
  for (const SideTable* table : side_tables(plan)) {
    sides_.push_back({table, std::make_unique<CsvWriter>(table->path(plan.options.out),
                                                         table->header(), mode_of(plan.options))});
    lines.emplace_back(plan, *table, sides_.back().writer->existing());
  }
  if (!plan.options.export_caches.empty()) {
    caches_ = std::make_unique<CacheExport>(plan);
  }
  kvbench::settle(plan, before_, lines, caches_.get());
  if (!plan.error_layers.empty()) {
    layers_ = std::make_unique<LayerErrors>(plan, mode_of(plan.options));
    for (const Index job : layers_->open(before_)) {
      before_.forget(job);
      for (SideProgressed& side : lines) {
        side.forget(job);
      }
    }
  }
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    CsvWriter& side = *sides_[i].writer;
    if (lines[i].line_count() != static_cast<Index>(side.existing().size())) {
      side.rewrite_sorted(lines[i].in_order());
    }
  }
  if (before_.row_count() != static_cast<Index>(writer_.existing().size())) {
    writer_.rewrite_sorted(before_.in_order());  // rows of half-written jobs go
  }
}

void Outputs::write(Index job, const JobResult& result) {
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
  for (Side& side : sides_) {
    side.writer->append(lines_of(*side.table, result, rows));
  }
  if (layers_) {
    layers_->keep(job, result);
  }
  writer_.append(rows);
}

void Outputs::finish_layers(int threads, const std::atomic<bool>& stop) {
  if (layers_) {
    layers_->finish(threads, stop);
  }
}

RowCounts Outputs::settle() {
  const Table table = read_table(plan_.options.out);
  Progressed progressed(plan_, table.rows);
  std::vector<std::vector<Fields>> there;
  std::vector<SideProgressed> lines;
  for (const Side& side : sides_) {
    there.push_back(read_table(side.writer->path()).rows);
    lines.emplace_back(plan_, *side.table, there.back());
  }
  kvbench::settle(plan_, progressed, lines, caches_.get());
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    put(*sides_[i].writer, there[i], lines[i].in_order());
  }
  const std::vector<Fields> sorted = progressed.in_order();
  put(writer_, table.rows, sorted);
  if (layers_) {
    layers_->settle();
  }
  const std::size_t status = column_index("status");
  RowCounts out;
  out.rows = static_cast<Index>(sorted.size());
  for (const Fields& row : sorted) {
    const std::string_view kind = status_kind(row[status]);
    out.failed += kind == "failed" ? 1 : 0;
    out.infeasible += kind == "infeasible" ? 1 : 0;
    out.degenerate += kind == "degenerate" ? 1 : 0;
  }
  return out;
}

void Outputs::finish(const std::vector<std::string>& trace_sha256) {
  if (caches_) {
    caches_->finish(trace_sha256);
  }
}

void Outputs::sync() {
  for (const Side& side : sides_) {
    side.writer->sync();
  }
  if (layers_) {
    layers_->sync();
  }
  writer_.sync();
}

}  // namespace kvbench
