#include "replay/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "replay/cache_export.hpp"
#include "replay/job.hpp"
#include "replay/row_parts.hpp"
#include "replay/stream_job.hpp"
#include "report/kept.hpp"
#include "report/queries.hpp"
#include "report/steps.hpp"

namespace kvbench {
namespace {

// The job that makes a row, and which of its query heads the row is for.
struct Place {
  Index job;
  std::size_t at;
};

// By key: every row that this shard's jobs make. Rows of one key are one head's or, where the key
// leaves out the query head, a whole job's; then the first stands for all.
template <class Key>
std::unordered_map<std::string, Place> planned_places(const Plan& plan, const Key& key) {
  std::unordered_map<std::string, Place> places;
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    const std::vector<Index>& heads = plan.unit_of(job).q_heads;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      places.emplace(key(blank_row(plan, plan.unit_of(job), plan.entry_of(job), heads[i])),
                     Place{job, i});
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

Progressed::Progressed(const Plan& plan, const std::vector<Fields>& rows)
    : jobs_(plan.shard_jobs()) {
  if (rows.empty()) {
    return;
  }
  const auto places = planned_places(plan, [](const Row& row) { return row_key(row); });
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

std::vector<const SideTable*> side_tables(const Plan& plan) {
  std::vector<const SideTable*> out;
  if (plan.stream()) {
    out.push_back(&steps_table());
  }
  if (plan.options.kept) {
    out.push_back(&kept_table());
  }
  if (plan.options.per_query) {
    out.push_back(&queries_table());
  }
  return out;
}

std::vector<Index> side_positions(const Plan& plan, const SideTable& table, Index n, Index nq) {
  if (&table == &steps_table()) {
    return stream_steps(plan.options, n);
  }
  if (&table == &queries_table()) {
    std::vector<Index> out(static_cast<std::size_t>(windows_of(plan.options, n, nq).queries));
    std::iota(out.begin(), out.end(), n - static_cast<Index>(out.size()));
    return out;
  }
  if (!table.steps()) {
    return {0};
  }
  return kept_steps(plan.options, n);
}

SideProgressed::SideProgressed(const Plan& plan, const SideTable& table,
                               std::vector<Fields> lines) {
  if (lines.empty()) {
    return;
  }
  const std::string file = table.path(plan.options.out).string();
  const bool of_steps = table.steps();
  const auto places =
      planned_places(plan, [&](const Row& row) { return table.key_of_row(to_fields(row)); });
  std::map<std::pair<Index, Index>, std::vector<Index>> positions;  // by tokens and queries
  for (Fields& fields : lines) {
    const auto it = places.find(table.key(fields));
    if (it == places.end()) {
      refuse(file,
             of_steps ? "a step of a row that this plan does not make"
                      : "a line of rows that this plan does not make",
             fields, table.header());
    }
    const Index job = it->second.job;
    const Unit& unit = plan.unit_of(job);
    const LayerMeta& layer = plan.layer_meta(unit);
    std::vector<Index>& steps = positions[{layer.n, layer.nq}];
    if (steps.empty()) {
      steps = side_positions(plan, table, layer.n, layer.nq);
    }
    const Index position = table.step(fields);
    const auto step = std::lower_bound(steps.begin(), steps.end(), position);
    if (step == steps.end() || *step != position) {
      refuse(file, "a step that this plan does not evaluate", fields, table.header());
    }
    const std::size_t groups = table.per_query_head() ? unit.q_heads.size() : 1;
    auto& rows = lines_[job];
    rows.resize(groups, std::vector<Fields>(steps.size()));
    Fields& place = rows[it->second.at][static_cast<std::size_t>(step - steps.begin())];
    if (!place.empty()) {
      refuse(file, of_steps ? "one step twice" : "one line twice", fields, table.header());
    }
    place = std::move(fields);
  }
}

bool SideProgressed::agrees(Index job, std::string_view status) const {
  const auto it = lines_.find(job);
  if (it == lines_.end() || !has_lines(status)) {
    return (it != lines_.end()) == has_lines(status);
  }
  return std::all_of(it->second.begin(), it->second.end(), [](const auto& steps) {
    return std::none_of(steps.begin(), steps.end(),
                        [](const Fields& fields) { return fields.empty(); });
  });
}

Index SideProgressed::line_count() const {
  Index n = 0;
  for (const auto& [job, rows] : lines_) {
    for (const auto& steps : rows) {
      n += static_cast<Index>(steps.size());
    }
  }
  return n;
}

std::vector<Fields> SideProgressed::in_order() const {
  std::vector<Fields> out;
  for (const auto& [job, rows] : lines_) {
    for (const auto& steps : rows) {
      out.insert(out.end(), steps.begin(), steps.end());
    }
  }
  return out;
}

void settle(const Plan& plan, Progressed& main, std::span<SideProgressed> sides,
            const CacheExport* caches) {
  const std::size_t status = column_index("status");
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    const auto agrees = [&](const auto& part) {
      return part.agrees(job, main.rows(job).front()[status]);
    };
    const bool good = main.done(job) && std::all_of(sides.begin(), sides.end(), agrees) &&
                      (caches == nullptr || agrees(*caches));
    if (!good) {
      main.forget(job);
      for (SideProgressed& side : sides) {
        side.forget(job);
      }
    }
  }
}

}  // namespace kvbench
