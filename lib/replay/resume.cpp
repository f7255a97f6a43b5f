#include "replay/resume.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "replay/job.hpp"
#include "report/schema.hpp"

namespace kvbench {

std::string planned_key(const Plan& plan, Index job, Index q_head) {
  const Unit& unit = plan.unit_of(job);
  const Entry& entry = plan.entry_of(job);
  const LayerMeta& layer = plan.layer_meta(unit);
  const Variant& variant = plan.variants[entry.variant];
  Row row;
  row.trace = plan.trace_names[unit.trace];
  row.prompt = plan.prompt_meta(unit).id;
  row.layer = layer.layer;
  row.q_head = q_head;
  row.algorithm = variant.method->info.name;
  row.params = variant.params.canonical();
  row.protocol = plan.options.protocol;
  row.sink = plan.options.sink;
  row.recent = plan.options.recent;
  row.scores = plan.options.scores;
  row.device = plan.options.device;
  row.seed = entry.seed;
  row.n_queries = windows_of(plan.options, layer.n, layer.nq).queries;
  row.budget_requested = entry.budget;
  return row_key(row);
}

Progressed::Progressed(const Plan& plan, const std::vector<Fields>& rows)
    : jobs_(plan.shard_jobs()) {
  if (rows.empty()) {
    return;
  }
  struct Place {
    Index job;
    std::size_t at;
  };
  std::unordered_map<std::string, Place> places;
  for (Index job = jobs_.begin; job < jobs_.end; ++job) {
    const std::vector<Index>& heads = plan.unit_of(job).q_heads;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      places[planned_key(plan, job, heads[i])] = {job, i};
    }
  }
  std::unordered_map<Index, std::size_t> found;
  for (const Fields& fields : rows) {
    const auto it = places.find(row_key(fields));
    if (it == places.end()) {
      throw InputError(fmt::format(
          "{}: holds a row that this plan does not make (algorithm {}, params {}, seed {}); "
          "expected the same command as the run to resume",
          plan.options.out, fields[column_index("algorithm")], fields[column_index("params")],
          fields[column_index("seed")]));
    }
    auto& job_rows = rows_[it->second.job];
    job_rows.resize(plan.unit_of(it->second.job).q_heads.size());
    if (!job_rows[it->second.at].empty()) {
      throw InputError(fmt::format("{}: holds one row twice (algorithm {}, seed {})",
                                   plan.options.out, fields[column_index("algorithm")],
                                   fields[column_index("seed")]));
    }
    job_rows[it->second.at] = fields;
    ++found[it->second.job];
  }
  for (const auto& [job, count] : found) {
    if (count < rows_[job].size()) {
      rows_.erase(job);
    }
  }
}

Index Progressed::row_count() const {
  Index n = 0;
  for (const auto& [job, rows] : rows_) {
    n += static_cast<Index>(rows.size());
  }
  return n;
}

std::vector<Fields> Progressed::in_order() const {
  std::vector<Fields> out;
  for (Index job = jobs_.begin; job < jobs_.end; ++job) {
    const auto it = rows_.find(job);
    if (it != rows_.end()) {
      out.insert(out.end(), it->second.begin(), it->second.end());
    }
  }
  return out;
}

}  // namespace kvbench
