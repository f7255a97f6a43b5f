#include "report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
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

struct Accumulator {
  SummaryGroup group;
  std::vector<std::vector<double>> values;  // per metric
};

std::string_view major_of(std::string_view version) {
  return version.substr(0, version.find('.'));
}

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

/// Adds the rows of one table to the groups.
class Collector {
 public:
  explicit Collector(Summary& summary) : summary_(summary) {}

  void add(const Table& table) {
    const std::vector<std::size_t> group_at = positions(table, summary_.group_columns);
    const std::vector<std::size_t> metric_at = positions(table, summary_.metrics);
    const std::size_t status_at = table.column("status");
    std::vector<std::pair<std::string_view, std::size_t>> settings_at;
    for (const std::string_view name : settings) {
      if (std::find(summary_.group_columns.begin(), summary_.group_columns.end(), name) ==
          summary_.group_columns.end()) {
        settings_at.emplace_back(name, table.column(name));
      }
    }
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      const Fields& row = table.rows[r];
      Accumulator& group = find(row, group_at);
      for (const auto& [name, at] : settings_at) {
        seen_[{&group - groups_.data(), name}].insert(row[at]);
      }
      if (!count_status(group.group, row[status_at], table, r)) {
        ++summary_.left_out[kind_and_reason(row[status_at])];
        continue;
      }
      for (std::size_t m = 0; m < metric_at.size(); ++m) {
        double value = 0.0;
        if (!parse_number(row[metric_at[m]], value)) {
          throw InputError(fmt::format("{}: row {}: column `{}`: got `{}`, expected a number",
                                       table.source, r + 1, summary_.metrics[m],
                                       row[metric_at[m]]));
        }
        group.values[m].push_back(value);
      }
    }
  }

  void finish() {
    for (Accumulator& a : groups_) {
      for (const std::vector<double>& v : a.values) {
        a.group.moments.push_back(moments_of(v));
      }
      summary_.groups.push_back(std::move(a.group));
    }
    for (const std::string_view name : settings) {
      const bool differs = std::any_of(seen_.begin(), seen_.end(), [&](const auto& entry) {
        return entry.first.second == name && entry.second.size() > 1;
      });
      if (differs) {
        summary_.pooled.emplace_back(name);
      }
    }
  }

 private:
  // Of a degenerate row the reason too, but for the row's own counts; others are full of numbers.
  static std::string kind_and_reason(std::string_view status) {
    const std::string_view kind = status_kind(status);
    return std::string(kind == "degenerate" ? status.substr(0, status.find(" for ")) : kind);
  }

  static std::vector<std::size_t> positions(const Table& table,
                                            const std::vector<std::string>& names) {
    std::vector<std::size_t> at;
    for (const std::string& name : names) {
      at.push_back(table.column(name));
    }
    return at;
  }

  Accumulator& find(const Fields& row, const std::vector<std::size_t>& group_at) {
    std::vector<std::string> key;
    for (const std::size_t at : group_at) {
      key.push_back(row[at]);
    }
    const auto [it, fresh] = index_.emplace(key, groups_.size());
    if (fresh) {
      Accumulator a;
      a.group.key = std::move(key);
      a.values.resize(summary_.metrics.size());
      groups_.push_back(std::move(a));
    }
    return groups_[it->second];
  }

  /// True when the row enters the means.
  static bool count_status(SummaryGroup& group, std::string_view status, const Table& table,
                           std::size_t r) {
    const std::string_view kind = status_kind(status);
    for (const auto& [name, count] : {std::pair{"ok", &group.count},
                                      {"degenerate", &group.degenerate},
                                      {"infeasible", &group.infeasible},
                                      {"failed", &group.failed}}) {
      if (kind == name) {
        ++*count;
        return count == &group.count;
      }
    }
    throw InputError(
        fmt::format("{}: row {}: status `{}`, expected ok, degenerate, infeasible or failed",
                    table.source, r + 1, status));
  }

  Summary& summary_;
  std::vector<Accumulator> groups_;
  std::map<std::vector<std::string>, std::size_t> index_;
  std::map<std::pair<std::ptrdiff_t, std::string_view>, std::set<std::string>> seen_;
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
    if (std::isnan(x) || std::isnan(y)) {
      if (std::isnan(x) && std::isnan(y) && !metric) {
        return options.descending ? a.key[*column] > b.key[*column]
                                  : a.key[*column] < b.key[*column];
      }
      return !std::isnan(x) && std::isnan(y);
    }
    return options.descending ? x > y : x < y;
  };
  std::stable_sort(summary.groups.begin(), summary.groups.end(), before);
}

}  // namespace

Moments moments_of(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.empty()) {
    return {nan_value, nan_value};
  }
  double sum = 0.0;
  for (const double v : values) {
    sum += v;
  }
  const double mean = sum / n;
  if (values.size() == 1) {
    return {mean, nan_value};
  }
  double squares = 0.0;
  for (const double v : values) {
    squares += (v - mean) * (v - mean);
  }
  return {mean, std::sqrt(squares / (n - 1.0))};
}

Summary summarize(std::span<const Table> tables, const SummaryOptions& options) {
  Summary summary;
  summary.group_columns = {"algorithm", "params", "budget_requested"};
  for (const std::string& name : options.by) {
    if (std::find(summary.group_columns.begin(), summary.group_columns.end(), name) ==
        summary.group_columns.end()) {
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
