#include "report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "report/repeats.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// What a mean may run over is kSpreadColumns. Anything else that differs between its rows makes it
// a mean of things that do not belong together.
constexpr std::array<std::string_view, 9> settings{
    "model", "dtype", "precision", "protocol", "sink", "recent", "scores", "device", "n_queries"};

// Values of a setting that a message names.
constexpr std::size_t kNamed = 5;

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
  double least = std::numeric_limits<double>::infinity();
  double most = -least;

  void add(double value) {
    values += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }

  // Of no rows 0 / 0. It lies among the values, whatever their sum was rounded to: equal ones
  // deviate by 0.
  double mean(Index count) const {
    const double x = values / static_cast<double>(count);
    return least <= most ? std::clamp(x, least, most) : x;
  }
};

using Values = std::set<std::string>;

/// Takes all rows of all tables twice: add(), then add_squares(); finish() makes the moments.
class Collector {
 public:
  Collector(Summary& summary, const SummaryOptions& options)
      : summary_(summary), compared_(!options.across.empty()) {
    for (const std::string_view name : settings) {
      if (std::ranges::count(summary_.group_columns, name) == 0) {
        settings_.emplace_back(name);
      }
    }
    for (std::size_t c = 0; c < summary_.group_columns.size(); ++c) {
      const std::string& name = summary_.group_columns[c];
      if (std::ranges::count(kGroupColumns, name) == 0 && name != options.across) {
        block_columns_.push_back(c);
      }
    }
  }

  void open(const SummaryRows& rows) {
    schema_at_ = rows.column("schema");
    group_at_ = positions(rows, summary_.group_columns);
    metric_at_ = positions(rows, summary_.metrics);
    settings_at_ = positions(rows, settings_);
    for (std::size_t c = 0; c < kSpreadColumns.size(); ++c) {
      spread_at_[c] = rows.column(kSpreadColumns[c].name);
    }
    ratio_at_ = rows.column("ratio");
    status_at_ = rows.column("status");
    row_key_.emplace(rows);
  }

  void add(const SummaryRows& rows) {
    check_schema(rows);
    hashes_.push_back(hash_of(row_key_->of(rows)));
    Fields key = key_of(rows);
    const auto [it, fresh] = index_.emplace(key, summary_.groups.size());
    const std::size_t g = it->second;
    if (fresh) {
      blocks_.push_back(compared_ ? block_index_.emplace(block_of(key), g).first->second : g);
      summary_.groups.push_back({.key = std::move(key), .moments = {}});
      sums_.emplace_back(summary_.metrics.size());
      first_.emplace_back();
    }
    note_settings(rows, g);
    const std::string& status = rows.cell(status_at_);
    Index* const count = count_of(summary_.groups[g], status);
    if (count == nullptr) {
      refuse(rows,
             fmt::format("status `{}`, expected ok, degenerate, infeasible or failed", status));
    }
    ++*count;
    if (count != &summary_.groups[g].count) {
      ++summary_.left_out[kind_and_reason(status)];
      return;
    }
    note_spread(rows, g);
    for (std::size_t m = 0; m < metric_at_.size(); ++m) {
      sums_[g][m].add(number(rows, metric_at_[m], summary_.metrics[m]));
    }
    summary_.groups[g].ratio += number(rows, ratio_at_, "ratio");
  }

  void add_squares(const SummaryRows& rows) {
    if (status_kind(rows.cell(status_at_)) != "ok") {
      return;
    }
    const auto it = index_.find(key_of(rows));
    if (it == index_.end()) {
      refuse(rows, "was not there when the table was read first");
    }
    const std::size_t g = it->second;
    for (std::size_t m = 0; m < metric_at_.size(); ++m) {
      const double distance = number(rows, metric_at_[m], summary_.metrics[m]) -
                              sums_[g][m].mean(summary_.groups[g].count);
      sums_[g][m].squares += distance * distance;
    }
  }

  std::vector<std::uint64_t> take_hashes() { return std::move(hashes_); }

  /// Settings that differ where they should not, with their values.
  std::map<std::string, Values> differing() const {
    std::map<std::string, Values> out;
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      for (const auto& [block, values] : seen_[s]) {
        if (values.size() > 1) {
          out[settings_[s]].insert(values.begin(), values.end());
        }
      }
    }
    return out;
  }

  void finish() {
    for (std::size_t g = 0; g < sums_.size(); ++g) {
      SummaryGroup& group = summary_.groups[g];
      const auto n = static_cast<double>(group.count);
      for (const Sums& sums : sums_[g]) {
        group.moments.push_back(
            {sums.mean(group.count), n == 0.0 ? nan_value : std::sqrt(sums.squares / (n - 1.0))});
      }
      group.ratio /= n;  // of no rows 0 / 0
    }
    for (std::size_t c = 0; c < kSpreadColumns.size(); ++c) {
      if (varies_[c]) {
        summary_.spread.push_back(kSpreadColumns[c].words);
      }
    }
  }

 private:
  static std::vector<std::size_t> positions(const SummaryRows& rows,
                                            const std::vector<std::string>& names) {
    std::vector<std::size_t> at;
    for (const std::string& name : names) {
      at.push_back(rows.column(name));
    }
    return at;
  }

  [[noreturn]] static void refuse(const SummaryRows& rows, const std::string& what) {
    throw InputError(fmt::format("{}: row {}: {}", rows.source(), rows.row(), what));
  }

  void check_schema(const SummaryRows& rows) {
    const std::string& got = rows.cell(schema_at_);
    if (major_of(got) != major_of(schema_version)) {
      refuse(rows, fmt::format("schema `{}`, expected {}.x", got, major_of(schema_version)));
    }
    if (!version_.empty() && got != version_) {
      refuse(rows, fmt::format("schema `{}` after rows of `{}`: mixed schemas", got, version_));
    }
    version_ = got;
  }

  Fields key_of(const SummaryRows& rows) const {
    Fields key;
    for (const std::size_t at : group_at_) {
      key.push_back(rows.cell(at));
    }
    return key;
  }

  // Groups of one block are compared with each other.
  Fields block_of(const Fields& key) const {
    Fields block;
    for (const std::size_t c : block_columns_) {
      block.push_back(key[c]);
    }
    return block;
  }

  // Which queries a method looks at (`scores`) may differ between methods, but not within one. What
  // no row tells is not known to differ.
  void note_settings(const SummaryRows& rows, std::size_t g) {
    seen_.resize(settings_.size());
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      const std::string& value = rows.cell(settings_at_[s]);
      if (!value.empty()) {
        seen_[s][settings_[s] == "scores" ? g : blocks_[g]].insert(value);
      }
    }
  }

  void note_spread(const SummaryRows& rows, std::size_t g) {
    for (std::size_t c = 0; c < spread_at_.size(); ++c) {
      const std::string& value = rows.cell(spread_at_[c]);
      if (summary_.groups[g].count == 1) {
        first_[g][c] = value;
      }
      varies_[c] = varies_[c] || value != first_[g][c];
    }
  }

  static double number(const SummaryRows& rows, std::size_t at, std::string_view name) {
    double value = 0.0;
    const std::string& text = rows.cell(at);
    if (!parse_number(text, value)) {
      refuse(rows, fmt::format("column `{}`: got `{}`, expected a number", name, text));
    }
    return value;
  }

  Summary& summary_;
  bool compared_;
  std::vector<std::string> settings_;  // that are no group columns
  std::vector<std::size_t> block_columns_;
  std::string version_;            // of the rows' schema
  std::optional<RowKey> row_key_;  // columns of the table, as all that follow
  std::size_t schema_at_ = 0;
  std::vector<std::size_t> group_at_;
  std::vector<std::size_t> metric_at_;
  std::vector<std::size_t> settings_at_;
  std::array<std::size_t, kSpreadColumns.size()> spread_at_{};
  std::size_t ratio_at_ = 0;
  std::size_t status_at_ = 0;
  std::map<Fields, std::size_t> index_;        // of groups, by key
  std::map<Fields, std::size_t> block_index_;  // the first group of a block
  std::vector<std::size_t> blocks_;            // by group: the first of its block
  std::vector<std::vector<Sums>> sums_;        // by group and metric
  std::vector<std::array<std::string, kSpreadColumns.size()>> first_;  // values, by group
  std::array<bool, kSpreadColumns.size()> varies_{};
  std::vector<std::map<std::size_t, Values>> seen_;  // by setting and block
  std::vector<std::uint64_t> hashes_;                // of the rows' keys
};

std::string pooled_message(const std::map<std::string, Values>& differing) {
  std::string what;
  for (const auto& [name, values] : differing) {
    const auto end =
        std::next(values.begin(), std::min(std::ssize(values), std::ptrdiff_t{kNamed}));
    what += fmt::format("{}{} ({}{})", what.empty() ? "" : ", ", name,
                        fmt::join(values.begin(), end, ", "), end == values.end() ? "" : ", ...");
  }
  const auto& [name, values] = *differing.begin();
  return fmt::format(
      "summarize: rows of one mean or comparison differ in {}; --by {} separates them, --where "
      "{}={} picks some, --pool pools them",
      what, name, name, *values.begin());
}

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

Summary summarize(std::span<const ResultTable> tables, const SummaryOptions& options) {
  Summary summary;
  summary.group_columns.assign(kGroupColumns.begin(), kGroupColumns.end());
  std::vector<std::string> by = options.by;
  if (!options.across.empty()) {
    by.push_back(options.across);
  }
  for (const std::string& name : by) {
    if (std::ranges::count(summary.group_columns, name) == 0) {
      summary.group_columns.push_back(name);
    }
  }
  summary.metrics = options.metrics;
  std::vector<RowFilter> filters = options.where;
  Collector collector(summary, options);
  std::string first;
  for (const ResultTable& table : tables) {
    SummaryRows rows(table, filters);
    first = first.empty() ? rows.source() : first;
    for (collector.open(rows); rows.next();) {
      collector.add(rows);
    }
  }
  for (const RowFilter& filter : filters) {
    filter.check_met();
  }
  if (summary.groups.empty()) {
    std::string kept;
    for (const RowFilter& filter : filters) {
      kept += fmt::format(" --where {}", filter.text());
    }
    throw InputError(kept.empty() ? fmt::format("{}: no rows to summarize", first)
                                  : fmt::format("{}: no rows are left by{}", first, kept));
  }
  check_repeats(tables, filters, collector.take_hashes());
  const std::map<std::string, Values> differing = collector.differing();
  if (!differing.empty() && !options.pool) {
    throw InputError(pooled_message(differing));
  }
  for (const auto& [name, values] : differing) {
    summary.pooled.push_back(name);
  }
  for (const ResultTable& table : tables) {
    SummaryRows rows(table, filters);
    for (collector.open(rows); rows.next();) {
      collector.add_squares(rows);
    }
  }
  collector.finish();
  if (!options.sort.empty()) {
    sort_groups(summary, options);
  }
  return summary;
}

}  // namespace kvbench
