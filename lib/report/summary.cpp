#include "report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
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

// Sum over a group's rows, first of the values and then of their squared distances from the mean.
struct Sums {
  double values = 0.0;
  double squares = 0.0;
};

/// Takes all rows of all tables twice: add(), then add_squares(); finish() makes the moments.
class Collector {
 public:
  explicit Collector(Summary& summary) : summary_(summary) {
    for (const std::string_view name : settings) {
      if (std::ranges::count(summary_.group_columns, name) == 0) {
        settings_.emplace_back(name);
      }
    }
  }

  void open(const TableReader& table) {
    schema_at_ = table.column("schema");
    group_at_ = positions(table, summary_.group_columns);
    metric_at_ = positions(table, summary_.metrics);
    settings_at_ = positions(table, settings_);
    status_at_ = table.column("status");
  }

  void add(const TableReader& table) {
    check_schema(table);
    const Fields& row = table.row();
    Fields key = key_of(row);
    const auto [it, fresh] = index_.emplace(key, summary_.groups.size());
    const std::size_t g = it->second;
    if (fresh) {
      summary_.groups.push_back({.key = std::move(key), .moments = {}});
      sums_.emplace_back(summary_.metrics.size());
      seen_.emplace_back(settings_.size());
    }
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      seen_[g][s].insert(row[settings_at_[s]]);
    }
    const std::string& status = row[status_at_];
    Index* const count = count_of(summary_.groups[g], status);
    if (count == nullptr) {
      refuse(table,
             fmt::format("status `{}`, expected ok, degenerate, infeasible or failed", status));
    }
    ++*count;
    if (count != &summary_.groups[g].count) {
      ++summary_.left_out[kind_and_reason(status)];
      return;
    }
    for (std::size_t m = 0; m < metric_at_.size(); ++m) {
      sums_[g][m].values += number(table, m);
    }
  }

  void add_squares(const TableReader& table) {
    const Fields& row = table.row();
    if (status_kind(row[status_at_]) != "ok") {
      return;
    }
    const auto it = index_.find(key_of(row));
    if (it == index_.end()) {
      refuse(table, "was not there when the table was read first");
    }
    const std::size_t g = it->second;
    for (std::size_t m = 0; m < metric_at_.size(); ++m) {
      const double distance = number(table, m) - mean(g, m);
      sums_[g][m].squares += distance * distance;
    }
  }

  void finish() {
    for (std::size_t g = 0; g < sums_.size(); ++g) {
      const auto n = static_cast<double>(summary_.groups[g].count);
      for (std::size_t m = 0; m < sums_[g].size(); ++m) {
        summary_.groups[g].moments.push_back(
            {mean(g, m), n == 0.0 ? nan_value : std::sqrt(sums_[g][m].squares / (n - 1.0))});
      }
    }
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      if (std::ranges::any_of(seen_, [s](const auto& seen) { return seen[s].size() > 1; })) {
        summary_.pooled.push_back(settings_[s]);
      }
    }
  }

 private:
  static std::vector<std::size_t> positions(const TableReader& table,
                                            const std::vector<std::string>& names) {
    std::vector<std::size_t> at;
    for (const std::string& name : names) {
      at.push_back(table.column(name));
    }
    return at;
  }

  [[noreturn]] static void refuse(const TableReader& table, const std::string& what) {
    throw InputError(fmt::format("{}: row {}: {}", table.source(), table.rows(), what));
  }

  void check_schema(const TableReader& table) {
    const std::string& got = table.row()[schema_at_];
    if (major_of(got) != major_of(schema_version)) {
      refuse(table, fmt::format("schema `{}`, expected {}.x", got, major_of(schema_version)));
    }
    if (!version_.empty() && got != version_) {
      refuse(table, fmt::format("schema `{}` after rows of `{}`: mixed schemas", got, version_));
    }
    version_ = got;
  }

  Fields key_of(const Fields& row) const {
    Fields key;
    for (const std::size_t at : group_at_) {
      key.push_back(row[at]);
    }
    return key;
  }

  double number(const TableReader& table, std::size_t metric) const {
    double value = 0.0;
    const std::string& text = table.row()[metric_at_[metric]];
    if (!parse_number(text, value)) {
      refuse(table, fmt::format("column `{}`: got `{}`, expected a number",
                                summary_.metrics[metric], text));
    }
    return value;
  }

  // Of no rows 0 / 0.
  double mean(std::size_t group, std::size_t metric) const {
    return sums_[group][metric].values / static_cast<double>(summary_.groups[group].count);
  }

  Summary& summary_;
  std::vector<std::string> settings_;  // that are no group columns
  std::string version_;                // of the rows' schema
  std::size_t schema_at_ = 0;          // columns of the table
  std::vector<std::size_t> group_at_;
  std::vector<std::size_t> metric_at_;
  std::vector<std::size_t> settings_at_;
  std::size_t status_at_ = 0;
  std::map<Fields, std::size_t> index_;                   // of groups, by key
  std::vector<std::vector<Sums>> sums_;                   // by group and metric
  std::vector<std::vector<std::set<std::string>>> seen_;  // values, by group and setting
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

Summary summarize(std::span<const OpenTable> tables, const SummaryOptions& options) {
  Summary summary;
  summary.group_columns.assign(kGroupColumns.begin(), kGroupColumns.end());
  for (const std::string& name : options.by) {
    if (std::ranges::count(summary.group_columns, name) == 0) {
      summary.group_columns.push_back(name);
    }
  }
  summary.metrics = options.metrics;
  Collector collector(summary);
  std::string first;
  for (const OpenTable& open : tables) {
    const std::unique_ptr<TableReader> table = open();
    first = first.empty() ? table->source() : first;
    for (collector.open(*table); table->next();) {
      collector.add(*table);
    }
  }
  if (summary.groups.empty()) {
    throw InputError(fmt::format("{}: no rows to summarize", tables.empty() ? "summarize" : first));
  }
  for (const OpenTable& open : tables) {
    const std::unique_ptr<TableReader> table = open();
    for (collector.open(*table); table->next();) {
      collector.add_squares(*table);
    }
  }
  collector.finish();
  if (!options.sort.empty()) {
    sort_groups(summary, options);
  }
  return summary;
}

}  // namespace kvbench
