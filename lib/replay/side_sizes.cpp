#include "replay/side_sizes.hpp"

#include <algorithm>
#include <string>

#include "replay/blank_row.hpp"
#include "replay/side_tables.hpp"
#include "replay/windows.hpp"
#include "report/csv.hpp"
#include "report/query_bins.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr double kNumber = 19.0;  // length of 0.12345678901234567
constexpr double kRun = 12.0;     // length of a run_id
// Number of kept ranges over that of randomly drawn tokens: high scores have neighbours with high
// scores. Means over methods that keep tokens and over all others, measured at budgets 1/4 and 1/8
// on data/sample.h5.
constexpr double kRanges = 0.6;
constexpr double kRangesOfOthers = 0.25;

double digits(Index number) {
  return static_cast<double>(std::to_string(number).size());
}

// Mean over positions below n.
double mean_digits(Index n) {
  double sum = 0.0;
  for (Index power = 1; power < n; power *= 10) {
    sum += static_cast<double>(n - (power == 1 ? 0 : power));
  }
  return sum / static_cast<double>(n);
}

// Characters of the list of kept tokens after n tokens.
double kept_length(const PlanSpec& plan, const Entries::Setting& setting, Index n) {
  const ReplayOptions& o = plan.options;
  const MethodInfo& info = plan.variants[setting.first.variant].method->info;
  const auto all = static_cast<double>(n);
  const auto exact = static_cast<double>(std::min(n, o.sink + o.recent));
  const double middle = all - exact;
  // Assume half for native sizes.
  const double budget = setting.first.budget.value_or(0.5);
  const double tokens = plan.stream() ? budget * all - exact : budget * middle;
  const double kept = middle > 0.0 ? std::clamp(tokens / middle, 0.0, 1.0) : 0.0;
  // Randomly drawn tokens: one begins a range if its predecessor is not kept; the range has two
  // numbers if its successor is kept.
  const double ranges = middle * kept * (1.0 - kept);
  const double length = (1.0 + kept) * (mean_digits(n) + 1.0);
  const double share = info.holds <= Holds::weighted_tokens ? kRanges : kRangesOfOthers;
  return 4.0 * digits(n) + share * ranges * length;  // with two ranges of sinks and recent tokens
}

// Characters of the table's own cells over all lines of a row.
double own_length(const PlanSpec& plan, const TableSpec* table, const Entries::Setting& setting,
                  const LayerMeta& layer, const std::vector<Index>& positions) {
  double out = 0.0;
  for (const Index position : positions) {
    out += digits(position);
    if (table == &kept_table()) {
      out += kept_length(plan, setting, position + 1);
    } else if (table == &steps_table()) {
      out += kNumber + digits(layer.n * (layer.d + layer.dv));
    } else if (table == &every_query_table()) {
      out += digits(position - positions.front()) + kNumber;
    }
  }
  if (table == &queries_table()) {
    for (const auto& [first, last] : query_bins(windows_of(plan.options, layer).queries)) {
      out += digits(last) + digits(last - first + 1) + 2.0 * kNumber;
    }
  }
  return out;
}

}  // namespace

std::vector<SideSize> side_sizes(const PlanSpec& plan) {
  std::vector<SideSize> out;
  const double part = plan.jobs() == 0 ? 0.0
                                       : static_cast<double>(plan.shard_jobs().size()) /
                                             static_cast<double>(plan.jobs());
  for (const TableSpec* table : side_tables(plan)) {
    double bytes = 0.0;
    for (const Range& range : plan.layers()) {
      const Unit& unit = plan.units[range.begin];
      const LayerMeta& layer = plan.layer_meta(unit);
      const std::vector<Index> positions = side_positions(plan, table, layer);
      const auto lines = static_cast<double>(positions.size());
      Index rows = 0;  // of one entry
      for (Index u = range.begin; u < range.end; ++u) {
        rows += table->per_query_head() ? std::ssize(plan.units[u].q_heads) : 1;
      }
      for (const Entries::Setting& setting : plan.entries.settings()) {
        if (plan.stream() &&
            setting.first.budget.value_or(1.0) * static_cast<double>(layer.n) <
                static_cast<double>(std::min(layer.n, plan.options.sink + plan.options.recent))) {
          continue;
        }
        const Fields row = to_fields(blank_row(plan, unit, setting.first, unit.q_heads.front()));
        const double keys =
            static_cast<double>(csv_line(table->line_of(row, Fields(table->own().size()))).size()) +
            kRun;
        bytes += static_cast<double>(rows) * static_cast<double>(setting.seeds->size()) *
                 (lines * keys + own_length(plan, table, setting, layer, positions));
      }
    }
    out.push_back({table, part * bytes});
  }
  return out;
}

}  // namespace kvbench
