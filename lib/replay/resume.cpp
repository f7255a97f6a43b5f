#include "replay/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "replay/cache_export.hpp"
#include "replay/job.hpp"
#include "replay/row_parts.hpp"
#include "replay/stream_job.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Positions of the queries for which a table gets lines, ascending.
std::vector<Index> side_positions(const Plan& plan, const SideTable* table, const LayerMeta& l) {
  if (table == nullptr || !table->steps()) {
    return {0};
  }
  if (table == &queries_table()) {
    return positions_of({l.n - windows_of(plan.options, l.n, l.nq).queries, l.n});
  }
  return table == &steps_table() ? stream_steps(plan.options, l.n) : kept_steps(plan.options, l.n);
}

}  // namespace

std::vector<const SideTable*> side_tables(const Plan& plan) {
  std::vector<const SideTable*> out;
  for (const auto& [table, written] : {std::pair{&steps_table(), plan.stream()},
                                       {&kept_table(), plan.options.kept},
                                       {&queries_table(), plan.options.per_query}}) {
    if (written) {
      out.push_back(table);
    }
  }
  return out;
}

FinishedTable::FinishedTable(const Plan& plan, const SideTable* table, std::vector<Fields> lines) {
  given_ = std::ssize(lines);
  if (lines.empty()) {
    return;
  }
  const Fields& header = table == nullptr ? schema_header() : table->header();
  const bool steps = table != nullptr && table->steps();
  const auto refuse = [&](const std::string& what, const Fields& line) {
    const auto field = [&](const char* name) {
      return line[std::ranges::find(header, name) - header.begin()];
    };
    throw InputError(fmt::format(
        "{}: holds {} (algorithm {}, params {}, seed {}); expected the same command as the run to "
        "resume",
        table == nullptr ? plan.options.out : table->path(plan.options.out).string(), what,
        field("algorithm"), field("params"), field("seed")));
  };

  // Every row that this shard's jobs make. Rows of one key are one head's or, where the key leaves
  // out the query head, a whole job's; then the first stands for all.
  std::unordered_map<std::string, std::pair<Index, std::size_t>> places;  // job, query head
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    const std::vector<Index>& heads = plan.unit_of(job).q_heads;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const Fields row =
          to_fields(blank_row(plan, plan.unit_of(job), plan.entry_of(job), heads[i]));
      places.emplace(table == nullptr ? row_key(row) : table->key_of_row(row), std::pair{job, i});
    }
  }

  std::map<std::pair<Index, Index>, std::vector<Index>> positions;  // by tokens and queries
  std::tuple<Index, std::size_t, std::ptrdiff_t> last{-1, 0, 0};    // job, row, step
  for (Fields& fields : lines) {
    const auto it = places.find(table == nullptr ? row_key(fields) : table->key(fields));
    if (it == places.end()) {
      refuse(fmt::format("{} that this plan does not make", table == nullptr ? "a row"
                                                            : steps          ? "a step of a row"
                                                                             : "a line of rows"),
             fields);
    }
    const auto [job, head] = it->second;
    const Unit& unit = plan.unit_of(job);
    const LayerMeta& layer = plan.layer_meta(unit);
    std::vector<Index>& known = positions[{layer.n, layer.nq}];
    if (known.empty()) {
      known = side_positions(plan, table, layer);
    }
    const Index position = steps ? table->step(fields) : 0;
    const auto step = std::lower_bound(known.begin(), known.end(), position);
    if (step == known.end() || *step != position) {
      refuse("a step that this plan does not evaluate", fields);
    }
    const bool shared = table != nullptr && !table->per_query_head();
    auto& rows = lines_[job];
    rows.resize(shared ? 1 : unit.q_heads.size(), std::vector<Fields>(known.size()));
    Fields& place = rows[head][step - known.begin()];
    if (!place.empty()) {
      refuse(fmt::format("one {} twice", table == nullptr ? "row"
                                         : steps          ? "step"
                                                          : "line"),
             fields);
    }
    place = std::move(fields);
    const std::tuple here{job, shared ? 0 : head, step - known.begin()};
    in_order_ = in_order_ && last < here;
    last = here;
  }
}

bool FinishedTable::whole(Index job) const {
  const auto it = lines_.find(job);
  return it != lines_.end() && std::ranges::all_of(it->second, [](const auto& steps) {
           return std::ranges::none_of(steps, [](const Fields& f) { return f.empty(); });
         });
}

std::vector<Fields> FinishedTable::take_in_order() {
  std::vector<Fields> out;
  out.reserve(static_cast<std::size_t>(line_count()));
  for (auto& [job, rows] : lines_) {
    for (auto& steps : rows) {
      std::ranges::move(steps, std::back_inserter(out));
    }
  }
  lines_.clear();
  return out;
}

Index FinishedTable::line_count() const {
  std::size_t n = 0;
  for (const auto& [job, rows] : lines_) {
    n += rows.size() * rows.front().size();
  }
  return static_cast<Index>(n);
}

void reconcile(const Plan& plan, std::span<FinishedTable> tables, const CacheExport* caches) {
  const std::size_t status_at = column_index("status");
  const FinishedTable& main = tables.front();
  const auto good = [&](Index job) {
    if (!main.whole(job)) {
      return false;
    }
    const std::string& status = main.first(job)[status_at];
    return std::ranges::all_of(tables.subspan(1),
                               [&](const FinishedTable& side) {
                                 return has_lines(status) ? side.whole(job) : !side.has(job);
                               }) &&
           (caches == nullptr || caches->agrees(job, status));
  };
  const Range jobs = plan.shard_jobs();
  for (Index job = jobs.begin; job < jobs.end; ++job) {
    if (!good(job)) {
      for (FinishedTable& table : tables) {
        table.forget(job);
      }
    }
  }
}

}  // namespace kvbench
