#include "replay/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "replay/job.hpp"
#include "replay/stream_job.hpp"
#include "report/schema.hpp"
#include "report/steps.hpp"

namespace kvbench {
namespace {

// The job that makes a row, and which of its query heads the row is for.
struct Place {
  Index job;
  std::size_t at;
};

// By row key: every row that this shard's jobs make.
std::unordered_map<std::string, Place> planned_places(const Plan& plan) {
  std::unordered_map<std::string, Place> places;
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    const std::vector<Index>& heads = plan.unit_of(job).q_heads;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      places[planned_key(plan, job, heads[i])] = {job, i};
    }
  }
  return places;
}

std::string text_of(const Fields& fields, const Fields& header, std::string_view name) {
  return fields[static_cast<std::size_t>(std::find(header.begin(), header.end(), name) -
                                         header.begin())];
}

[[noreturn]] void refuse(const std::string& file, const char* what, const Fields& fields,
                         const Fields& header) {
  throw InputError(
      fmt::format("{}: holds {} (algorithm {}, params {}, seed {}); expected the same "
                  "command as the run to resume",
                  file, what, text_of(fields, header, "algorithm"),
                  text_of(fields, header, "params"), text_of(fields, header, "seed")));
}

}  // namespace

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
  row.algorithm = variant.name();
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
  const auto places = planned_places(plan);
  std::unordered_map<Index, std::size_t> found;
  for (const Fields& fields : rows) {
    const auto it = places.find(row_key(fields));
    if (it == places.end()) {
      refuse(plan.options.out, "a row that this plan does not make", fields, schema_header());
    }
    auto& job_rows = rows_[it->second.job];
    job_rows.resize(plan.unit_of(it->second.job).q_heads.size());
    if (!job_rows[it->second.at].empty()) {
      refuse(plan.options.out, "one row twice", fields, schema_header());
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

StepsProgressed::StepsProgressed(const Plan& plan, std::vector<Fields> rows) : plan_(plan) {
  if (rows.empty()) {
    return;
  }
  const std::string file = steps_path(plan.options.out).string();
  const auto places = planned_places(plan);
  std::map<Index, std::vector<Index>> positions;  // evaluated, by number of tokens
  for (Fields& fields : rows) {
    const auto it = places.find(step_row_key(fields));
    if (it == places.end()) {
      refuse(file, "a step of a row that this plan does not make", fields, steps_header());
    }
    const Index job = it->second.job;
    const Unit& unit = plan.unit_of(job);
    const Index n = plan.layer_meta(unit).n;
    std::vector<Index>& steps = positions[n];
    if (steps.empty()) {
      steps = stream_steps(plan.options, n);
    }
    const Index position = step_position(fields);
    const auto step = std::lower_bound(steps.begin(), steps.end(), position);
    if (step == steps.end() || *step != position) {
      refuse(file, "a step that this plan does not evaluate", fields, steps_header());
    }
    auto& heads = steps_[job];
    heads.resize(unit.q_heads.size(), std::vector<Fields>(steps.size()));
    Fields& place = heads[it->second.at][static_cast<std::size_t>(step - steps.begin())];
    if (!place.empty()) {
      refuse(file, "one step twice", fields, steps_header());
    }
    place = std::move(fields);
  }
}

void StepsProgressed::settle(Progressed& main) {
  const std::size_t status = column_index("status");
  const Range jobs = plan_.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    const auto it = steps_.find(job);
    bool good = main.done(job);
    if (good) {
      const bool measured = has_steps(main.rows(job).front()[status]);
      good = measured == (it != steps_.end());
      if (good && measured) {
        good = std::all_of(it->second.begin(), it->second.end(), [](const auto& steps) {
          return std::none_of(steps.begin(), steps.end(),
                              [](const Fields& fields) { return fields.empty(); });
        });
      }
    }
    if (!good) {
      main.forget(job);
      steps_.erase(job);
    }
  }
}

Index StepsProgressed::row_count() const {
  Index n = 0;
  for (const auto& [job, heads] : steps_) {
    for (const auto& steps : heads) {
      n += static_cast<Index>(steps.size());
    }
  }
  return n;
}

std::vector<Fields> StepsProgressed::in_order() const {
  std::vector<Fields> out;
  for (const auto& [job, heads] : steps_) {
    for (const auto& steps : heads) {
      out.insert(out.end(), steps.begin(), steps.end());
    }
  }
  return out;
}

}  // namespace kvbench
