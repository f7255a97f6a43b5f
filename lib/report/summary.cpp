#include "report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// What a mean may run over is heads, layers, prompts, traces and seeds. Anything else that differs
// inside a group is worth a word.
constexpr std::array<std::string_view, 6> settings{"protocol", "sink",   "recent",
                                                   "scores",   "device", "n_queries"};

void check_schema(const Table& table, std::optional<std::string>& version) {
  const std::size_t at = table.column("schema");
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const std::string& got = table.rows[r][at];
    if (major_of(got) != major_of(schema_version)) {
      throw InputError(fmt::format("{}: row {}: schema `{}`, expected {}.x", table.source, r + 1,
                                   got, major_of(schema_version)));
    }
    if (version && got != *version) {
      throw InputError(fmt::format("{}: row {}: schema `{}` after rows of `{}`: mixed schemas",
                                   table.source, r + 1, got, *version));
    }
    version = got;
  }
}

// Of a degenerate row the reason too, but for the row's own counts; others are full of numbers.
std::string kind_and_reason(std::string_view status) {
  const std::string_view kind = status_kind(status);
  return std::string(kind == "degenerate" ? status.substr(0, status.find(" for ")) : kind);
}

// The group's count of rows of this status; null: there is no such status.
Index* count_of(SummaryGroup& group, std::string_view status) {
  const std::string_view kind = status_kind(status);
  return kind == "ok"           ? &group.count
         : kind == "degenerate" ? &group.degenerate
         : kind == "infeasible" ? &group.infeasible
         : kind == "failed"     ? &group.failed
                                : nullptr;
}

std::vector<std::size_t> positions(const Table& table, const std::vector<std::string>& names) {
  std::vector<std::size_t> at;
  for (const std::string& name : names) {
    at.push_back(table.column(name));
  }
  return at;
}

/// Takes tables row by row; finish() makes the moments.
class Collector {
 public:
  explicit Collector(Summary& summary) : summary_(summary) {
    for (const std::string_view name : settings) {
      if (std::ranges::count(summary_.group_columns, name) == 0) {
        settings_.emplace_back(name);
      }
    }
  }

  void add(const Table& table) {
    const std::vector<std::size_t> group_at = positions(table, summary_.group_columns);
    const std::vector<std::size_t> metric_at = positions(table, summary_.metrics);
    const std::vector<std::size_t> settings_at = positions(table, settings_);
    const std::size_t status_at = table.column("status");
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      const Fields& row = table.rows[r];
      const auto refuse = [&](const std::string& what) {
        throw InputError(fmt::format("{}: row {}: {}", table.source, r + 1, what));
      };
      Fields key;
      for (const std::size_t at : group_at) {
        key.push_back(row[at]);
      }
      const auto [it, fresh] = index_.emplace(key, summary_.groups.size());
      const std::size_t g = it->second;
      if (fresh) {
        summary_.groups.push_back({.key = std::move(key), .moments = {}});
        values_.emplace_back(summary_.metrics.size());
      }
      for (std::size_t s = 0; s < settings_.size(); ++s) {
        seen_[{s, g}].insert(row[settings_at[s]]);
      }
      Index* const count = count_of(summary_.groups[g], row[status_at]);
      if (count == nullptr) {
        refuse(fmt::format("status `{}`, expected ok, degenerate, infeasible or failed",
                           row[status_at]));
      }
      ++*count;
      if (count != &summary_.groups[g].count) {
        ++summary_.left_out[kind_and_reason(row[status_at])];
        continue;
      }
      for (std::size_t m = 0; m < metric_at.size(); ++m) {
        double value = 0.0;
        if (!parse_number(row[metric_at[m]], value)) {
          refuse(fmt::format("column `{}`: got `{}`, expected a number", summary_.metrics[m],
                             row[metric_at[m]]));
        }
        values_[g][m].push_back(value);
      }
    }
  }

  void finish() {
    for (std::size_t g = 0; g < values_.size(); ++g) {
      for (const std::vector<double>& values : values_[g]) {
        summary_.groups[g].moments.push_back(moments_of(values));
      }
    }
    std::set<std::size_t> pooled;
    for (const auto& [where, values] : seen_) {
      if (values.size() > 1 && pooled.insert(where.first).second) {
        summary_.pooled.push_back(settings_[where.first]);
      }
    }
  }

 private:
  Summary& summary_;
  std::vector<std::string> settings_;                     // that are no group columns
  std::vector<std::vector<std::vector<double>>> values_;  // by group and metric
  std::map<Fields, std::size_t> index_;                   // of groups, by key
  std::map<std::pair<std::size_t, std::size_t>, std::set<std::string>> seen_;  // by setting, group
};

/// Ascending (or descending) by value, NaN last either way; stable.
void sort_groups(Summary& summary, const SummaryOptions& options) {
  const auto find = [&](const std::vector<std::string>& names) -> std::optional<std::size_t> {
    const auto it = std::find(names.begin(), names.end(), options.sort);
    return it == names.end() ? std::nullopt : std::optional<std::size_t>(it - names.begin());
  };
  const auto metric = find(summary.metrics);
  const auto column = find(summary.group_columns);
  if (!metric && !column) {
    throw InputError(
        fmt::format("sort: `{}` is neither a chosen metric nor a group column", options.sort));
  }
  const auto number = [&](const SummaryGroup& g) {
    double value = nan_value;
    if (metric) {
      return g.moments[*metric].mean;
    }
    return parse_number(g.key[*column], value) ? value : nan_value;
  };
  const auto before = [&](const SummaryGroup& a, const SummaryGroup& b) {
    const double x = number(a);
    const double y = number(b);
    if (std::isnan(x) != std::isnan(y)) {
      return std::isnan(y);
    }
    if (!std::isnan(x) || metric) {
      return options.descending ? x > y : x < y;
    }
    return options.descending ? a.key[*column] > b.key[*column] : a.key[*column] < b.key[*column];
  };
  std::stable_sort(summary.groups.begin(), summary.groups.end(), before);
}

}  // namespace

Moments moments_of(std::span<const double> values) {
  if (values.empty()) {
    return {nan_value, nan_value};
  }
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  const double squares =
      std::accumulate(values.begin(), values.end(), 0.0,
                      [mean](double sum, double v) { return sum + (v - mean) * (v - mean); });
  return {mean, std::sqrt(squares / (n - 1.0))};  // of one value 0 / 0
}

Summary summarize(std::span<const Table> tables, const SummaryOptions& options) {
  Summary summary;
  summary.group_columns.assign(kGroupColumns.begin(), kGroupColumns.end());
  for (const std::string& name : options.by) {
    if (std::ranges::count(summary.group_columns, name) == 0) {
      summary.group_columns.push_back(name);
    }
  }
  summary.metrics = options.metrics;
  std::optional<std::string> version;
  Collector collector(summary);
  for (const Table& table : tables) {
    check_schema(table, version);
    collector.add(table);
  }
  if (!version) {
    throw InputError(fmt::format("{}: no rows to summarize",
                                 tables.empty() ? "summarize" : tables.front().source));
  }
  collector.finish();
  if (!options.sort.empty()) {
    sort_groups(summary, options);
  }
  return summary;
}

}  // namespace kvbench
