#include "replay/side_tables.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "metrics/error.hpp"
#include "replay/windows.hpp"

namespace kvbench {
namespace {

// A job's lines of a side table. `rows`: lines of OUT.csv.
std::vector<Fields> lines_of(const TableSpec* table, const JobResult& done,
                             const std::vector<Fields>& rows) {
  std::vector<Fields> out;
  if (table == &steps_table()) {
    for (std::size_t i = 0; i < done.steps.size(); ++i) {
      for (const Step& step : done.steps[i]) {
        out.push_back(table->line(rows[i], step.position, step.rel_error, step.bytes));
      }
    }
  } else if (table == &queries_table()) {
    for (std::size_t i = 0; i < done.query_errors.size(); ++i) {
      const std::span<const double> errors = done.query_errors[i];
      for (const Range bin : query_bins(std::ssize(errors))) {
        const auto own = errors.subspan(bin.begin, bin.size());
        const double sum = std::accumulate(own.begin(), own.end(), 0.0);
        out.push_back(table->line(rows[i], bin.begin, bin.end - 1, bin.size(),
                                  sum / static_cast<double>(bin.size()), percentile(own, 0.5)));
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

std::string text_of(const std::vector<Fields>& lines) {
  std::string out;
  for (const Fields& line : lines) {
    out += csv_line(line);
  }
  return out;
}

}  // namespace

Row blank_row(const PlanSpec& plan, const Unit& unit, const Entry& entry, Index q_head) {
  const ReplayOptions& o = plan.options;
  const LayerMeta& layer = plan.layer_meta(unit);
  const Variant& variant = plan.variant_of(unit, entry);
  Row row;
  row.trace = plan.trace_names[unit.trace];
  row.prompt = plan.prompt_meta(unit).id;
  row.layer = layer.layer;
  row.q_head = q_head;
  row.kv_head = unit.kv_head;
  row.algorithm = variant.label();
  row.params = variant.label_params();
  row.protocol = name(o.protocol);
  row.sink = o.sink;
  row.recent = o.recent;
  row.scores = variant.scores_text(o.scores);
  row.device = o.device;
  row.seed = entry.seed;
  row.n_tokens = layer.n;
  const Windows windows = windows_of(o, layer);
  row.n_queries = windows.queries;
  row.budget_requested = entry.budget;
  row.repeats = o.repeat;
  const TraceMeta& trace = plan.trace_meta(unit);
  row.full_bytes = windows.seen() * plan.pair_bytes(unit);
  row.model = trace.model;
  row.dtype = name(trace.dtype);
  row.precision = name(o.precision);
  if (const auto queries = scoring_queries(plan, unit, variant)) {
    row.scoring_queries = queries->had;
  } else if (variant.sees_evaluated()) {
    row.scoring_queries = row.n_queries;
  }
  return row;
}

std::vector<const TableSpec*> side_tables(const PlanSpec& plan) {
  std::vector<const TableSpec*> out;
  for (const auto& [table, written] :
       {std::pair{&steps_table(), plan.stream()},
        {&kept_table(), plan.options.kept},
        {&queries_table(), plan.options.per_query == PerQuery::bins},
        {&every_query_table(), plan.options.per_query == PerQuery::all}}) {
    if (written) {
      out.push_back(table);
    }
  }
  return out;
}

Index most_lines(const PlanSpec& plan, const TableSpec* table) {
  const auto entries = static_cast<Index>(plan.entries.size());
  const Range jobs = plan.shard_jobs();
  Index out = 0;
  for (const Range units : plan.layers()) {
    const LayerMeta& l = plan.layer_meta(plan.units[units.begin]);
    const Index queries = windows_of(plan.options, l).queries;
    const Index of_row = table == &steps_table()     ? std::ssize(stream_steps(plan.options, l.n))
                         : table == &kept_table()    ? std::ssize(kept_steps(plan.options, l.n))
                         : table == &queries_table() ? std::ssize(query_bins(queries))
                                                     : queries;
    for (Index u = units.begin; u < units.end; ++u) {
      const Range mine{std::max(jobs.begin, u * entries), std::min(jobs.end, (u + 1) * entries)};
      const Index rows = table->per_query_head() ? std::ssize(plan.units[u].q_heads) : 1;
      out += std::max<Index>(0, mine.end - mine.begin) * rows * of_row;
    }
  }
  return out;
}

JobRecord job_record(const PlanSpec& plan, const JobResult& result, const std::string& run) {
  std::vector<Fields> rows;
  for (const Row& row : result.rows) {
    rows.push_back(to_fields(row));
    rows.back()[main_table().run_at()] = run;
  }
  JobRecord out;
  out.key = job_key(rows);
  for (const Row& row : result.rows) {
    out.count(row.status);
  }
  out.lines[main_table().name()] = text_of(rows);
  for (const TableSpec* table : side_tables(plan)) {
    out.lines[table->name()] = text_of(lines_of(table, result, rows));
  }
  return out;
}

std::string planned_key(const PlanSpec& plan, Index job) {
  std::vector<Fields> rows;
  for (const Index q_head : plan.unit_of(job).q_heads) {
    rows.push_back(to_fields(blank_row(plan, plan.unit_of(job), plan.entry_of(job), q_head)));
  }
  return job_key(rows);
}

}  // namespace kvbench
