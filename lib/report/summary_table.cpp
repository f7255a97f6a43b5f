#include "report/summary_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr double no_value = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kAlgorithm = 0;  // in a group's key, as kGroupColumns
constexpr std::size_t kParams = 1;
constexpr std::size_t kBudgetKey = 2;
constexpr std::string_view kBudget = kGroupColumns[kBudgetKey];

const Column* known(std::string_view name) {
  const auto it = std::ranges::find(columns(), name, &Column::name);
  return it == columns().end() ? nullptr : &*it;
}

std::string unit_of(std::string_view name) {
  return std::string(known(name) == nullptr ? "" : known(name)->unit);
}

Index left_out(const SummaryGroup& g) {
  return g.degenerate + g.infeasible + g.failed;
}

Estimate estimate(const SummaryGroup& g, std::size_t metric) {
  return {g.moments[metric].mean, g.moments[metric].sd, g.count};
}

// Whether a method sees the queries that it is judged by, itself or in a part.
bool is_oracle(const SummaryGroup& g) {
  constexpr std::array<std::string_view, 2> oracles{"oracle", "oracle-matching"};
  const auto is_one = [&](std::string_view name) { return std::ranges::count(oracles, name) > 0; };
  std::string_view rest = g.key[kAlgorithm];
  for (std::size_t plus = 0; plus != std::string_view::npos;) {
    plus = rest.find('+');
    if (is_one(rest.substr(0, plus))) {
      return true;
    }
    rest.remove_prefix(plus == std::string_view::npos ? 0 : plus + 1);
  }
  return std::ranges::any_of(split_params(g.key[kParams]),
                             [&](const auto& param) { return is_one(param.second); });
}

// A mean of this group may be the best of its column. Native parameters give each method a size of
// its own.
bool contends(const SummaryGroup& g) {
  return !g.key[kBudgetKey].empty() && left_out(g) == 0 && std::isfinite(g.moments[0].mean) &&
         g.ratio < 1.0 && !is_oracle(g);
}

// Columns that name the method, from the groups that are to be rows.
void add_method(SummaryTable& table, const std::vector<const SummaryGroup*>& groups,
                Detail detail) {
  std::vector<std::string> names;
  std::vector<std::string> params;
  for (const SummaryGroup* g : groups) {
    names.push_back(g->key[kAlgorithm]);
    params.push_back(g->key[kParams]);
  }
  const std::vector<std::string> labels =
      detail == Detail::brief ? short_labels(names, params) : names;
  table.columns.push_back({"algorithm", "", "algorithm", false});
  if (detail != Detail::brief) {
    table.columns.push_back({"params", "", "params", false});
  }
  for (std::size_t r = 0; r < groups.size(); ++r) {
    table.rows[r].push_back({labels[r]});
    if (detail != Detail::brief) {
      table.rows[r].push_back({params[r]});
    }
  }
}

// One of the other group columns. A budget that nobody asked for says nothing to readers.
void add_key(SummaryTable& table, const std::vector<const SummaryGroup*>& groups,
             const std::string& name, std::size_t at, Detail detail) {
  if (detail != Detail::all && name == kBudget &&
      std::ranges::all_of(groups, [at](const SummaryGroup* g) { return g->key[at].empty(); })) {
    return;
  }
  const bool number = known(name) != nullptr && known(name)->number;
  const std::string shown = detail != Detail::all && name == kBudget ? "budget" : name;
  table.columns.push_back({shown, unit_of(name), name, number, number});
  for (std::size_t r = 0; r < groups.size(); ++r) {
    table.rows[r].push_back({groups[r]->key[at]});
  }
}

void add_counts(SummaryTable& table, const std::vector<const SummaryGroup*>& groups,
                Detail detail) {
  using Member = Index SummaryGroup::*;
  for (const auto& [name, member] : {std::pair<const char*, Member>{"count", &SummaryGroup::count},
                                     {"degenerate", &SummaryGroup::degenerate},
                                     {"infeasible", &SummaryGroup::infeasible},
                                     {"failed", &SummaryGroup::failed}}) {
    // Columns of zeros say nothing to readers; one that is not zero must be seen.
    const auto count = [member = member](const SummaryGroup* g) { return g->*member; };
    if (detail != Detail::all && member != &SummaryGroup::count &&
        std::ranges::none_of(groups, count)) {
      continue;
    }
    table.columns.push_back({name, "rows", name});
    for (std::size_t r = 0; r < groups.size(); ++r) {
      table.rows[r].push_back({count(groups[r])});
    }
  }
}

// Over what the deviations run.
std::string spread_note(const Summary& summary) {
  Index least = std::numeric_limits<Index>::max();
  Index most = 0;
  for (const SummaryGroup& g : summary.groups) {
    if (g.count > 0) {
      least = std::min(least, g.count);
      most = std::max(most, g.count);
    }
  }
  if (most < 2) {
    return "Each mean is of one row, which has no standard error.";
  }
  const std::string rows =
      least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  std::vector<std::string_view> what = summary.spread;
  what.insert(what.end(), summary.pooled.begin(), summary.pooled.end());
  return fmt::format("mean ± standard error over {} rows: {}.", rows, fmt::join(what, " x "));
}

}  // namespace

std::optional<bool> best_is_highest(std::string_view metric) {
  constexpr std::array<std::string_view, 2> high{"cosine", "mass_kept"};
  constexpr std::array<std::string_view, 3> sizes{"ratio", "middle_ratio", "tokens_kept"};
  const Column* column = known(metric);
  if (column == nullptr || !column->measured || column->unit == "bytes" ||
      std::ranges::count(sizes, metric) > 0 || metric.ends_with("_iqr")) {
    return std::nullopt;
  }
  return std::ranges::count(high, metric) > 0;
}

std::string three_digits(double value) {
  if (!std::isfinite(value) || value == 0.0) {
    return number_text(value + 0.0);  // no -0
  }
  const std::string text = fmt::format("{:.2e}", value);
  const std::size_t e = text.find('e');
  double rounded = 0.0;
  int exponent = 0;
  parse_number(std::string_view(text), rounded);
  parse_number(std::string_view(text).substr(e + (text[e + 1] == '+' ? 2 : 1)), exponent);
  constexpr int least = -4;  // beyond these, zeros would push the digits out of sight
  constexpr int most = 5;
  return exponent < least || exponent > most
             ? text
             : fmt::format("{:.{}f}", rounded, std::max(0, 2 - exponent));
}

double standard_error(const Estimate& e) {
  constexpr double rounding = 1e-12;  // of sums of millions of equal values
  if (e.count < 2) {
    return no_value;
  }
  return e.sd < rounding * std::abs(e.mean) ? 0.0 : e.sd / std::sqrt(static_cast<double>(e.count));
}

SummaryTable list_table(const Summary& summary, Detail detail) {
  SummaryTable table;
  std::vector<const SummaryGroup*> groups;
  for (const SummaryGroup& g : summary.groups) {
    groups.push_back(&g);
  }
  table.rows.resize(groups.size());
  add_method(table, groups, detail);
  for (std::size_t c = kParams + 1; c < summary.group_columns.size(); ++c) {
    add_key(table, groups, summary.group_columns[c], c, detail);
  }
  table.labels = table.columns.size();
  add_counts(table, groups, detail);
  for (std::size_t m = 0; m < summary.metrics.size(); ++m) {
    const std::string& name = summary.metrics[m];
    table.columns.push_back({name, unit_of(name), name});
    for (std::size_t r = 0; r < groups.size(); ++r) {
      table.rows[r].push_back({estimate(*groups[r], m)});
    }
  }
  table.notes.push_back(spread_note(summary));
  return table;
}

namespace {

// Methods by the values of one column.
struct Grid {
  std::size_t at = 0;                      // the column's place in the groups' keys
  std::vector<const SummaryGroup*> rows;   // the first group of each, in order of appearance
  std::vector<std::string> values;         // of the column, numbers ascending, then texts
  std::vector<std::size_t> block_columns;  // of the key: rows are compared where these are equal
  std::vector<Fields> blocks;              // their values, by row
  std::vector<std::vector<const SummaryGroup*>> cells;  // by row and value; null: no such group
};

std::optional<double> number_of(const std::string& text) {
  double value = 0.0;
  return parse_number(text, value) && !std::isnan(value) ? std::optional(value) : std::nullopt;
}

Grid grid_of(const Summary& summary, std::size_t at) {
  Grid grid;
  grid.at = at;
  for (std::size_t c = 0; c < summary.group_columns.size(); ++c) {
    if (c != at && c != kAlgorithm && c != kParams) {
      grid.block_columns.push_back(c);
    }
  }
  std::map<Fields, std::size_t> row_of;  // by the rest of the key
  const auto rest_of = [at](const SummaryGroup& g) {
    Fields rest = g.key;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(at));
    return rest;
  };
  for (const SummaryGroup& g : summary.groups) {
    if (row_of.emplace(rest_of(g), grid.rows.size()).second) {
      grid.rows.push_back(&g);
      grid.blocks.emplace_back();
      for (const std::size_t c : grid.block_columns) {
        grid.blocks.back().push_back(g.key[c]);
      }
    }
    if (std::ranges::count(grid.values, g.key[at]) == 0) {
      grid.values.push_back(g.key[at]);
    }
  }
  std::ranges::stable_sort(grid.values, [](const std::string& a, const std::string& b) {
    const std::optional<double> x = number_of(a);
    const std::optional<double> y = number_of(b);
    return x && y ? *x < *y : x && !y;
  });
  grid.cells.assign(grid.rows.size(),
                    std::vector<const SummaryGroup*>(grid.values.size(), nullptr));
  for (const SummaryGroup& g : summary.groups) {
    const auto value = std::ranges::find(grid.values, g.key[at]) - grid.values.begin();
    grid.cells[row_of.at(rest_of(g))][static_cast<std::size_t>(value)] = &g;
  }
  return grid;
}

// The best of each column among the rows of each block.
void mark_best(SummaryTable& table, const Grid& grid, bool highest) {
  for (std::size_t c = 0; c < grid.values.size(); ++c) {
    std::map<Fields, std::vector<std::size_t>> rows;  // that contend
    for (std::size_t r = 0; r < grid.rows.size(); ++r) {
      if (grid.cells[r][c] != nullptr && contends(*grid.cells[r][c])) {
        rows[grid.blocks[r]].push_back(r);
      }
    }
    for (const auto& [block, those] : rows) {
      const auto mean = [&, c](std::size_t r) { return grid.cells[r][c]->moments[0].mean; };
      const auto [low, high] = std::ranges::minmax(those, {}, mean);
      for (const std::size_t r : those) {
        table.rows[r][table.labels + c].best =
            those.size() > 1 && three_digits(mean(r)) == three_digits(mean(highest ? high : low));
      }
    }
  }
}

// What a mark of the best means; "" where there is none.
std::string best_note(const SummaryTable& table, const Summary& summary, const Grid& grid,
                      bool highest) {
  if (std::ranges::none_of(table.rows, [](const auto& row) {
        return std::ranges::any_of(row, &SummaryCell::best);
      })) {
    return "";
  }
  std::vector<std::string_view> equal;
  for (const std::size_t c : grid.block_columns) {
    equal.push_back(c == kBudgetKey ? std::string_view("budget") : summary.group_columns[c]);
  }
  return fmt::format(
      "the {} of its column{}{}, equal means included; methods that save nothing (ratio >= 1), "
      "that are oracles or have no budget do not count.",
      highest ? "highest" : "lowest", equal.empty() ? "" : " among rows of equal ",
      fmt::join(equal, " and "));
}

}  // namespace

SummaryTable across_table(const Summary& summary, const std::string& across, Detail detail) {
  if (summary.metrics.size() != 1) {
    throw InputError(fmt::format("--columns {}: got {} metrics ({}), expected one", across,
                                 summary.metrics.size(), fmt::join(summary.metrics, ", ")));
  }
  const std::string& metric = summary.metrics[0];
  const auto at = static_cast<std::size_t>(std::ranges::find(summary.group_columns, across) -
                                           summary.group_columns.begin());
  if (at == kAlgorithm || at == kParams) {
    throw InputError(
        fmt::format("--columns {}: methods are the rows, expected another column", across));
  }
  const Grid grid = grid_of(summary, at);
  SummaryTable table;
  table.rows.resize(grid.rows.size());
  add_method(table, grid.rows, detail);
  for (const std::size_t c : grid.block_columns) {
    add_key(table, grid.rows, summary.group_columns[c], c, detail);
  }
  table.labels = table.columns.size();
  for (std::size_t c = 0; c < grid.values.size(); ++c) {
    const bool native = at == kBudgetKey && grid.values[c].empty();
    const std::string value = native ? "native" : grid.values[c];
    table.columns.push_back(
        {native ? value : fmt::format("{} {}", at == kBudgetKey ? "budget" : across, value), "",
         fmt::format("{}_{}", metric, value), true, false, true});
    for (std::size_t r = 0; r < grid.rows.size(); ++r) {
      const SummaryGroup* g = grid.cells[r][c];
      const bool partial = g != nullptr && left_out(*g) > 0;
      table.rows[r].push_back(
          {g == nullptr ? Estimate{no_value, no_value, 0} : estimate(*g, 0), false, partial});
      if (partial) {
        table.partial = "some rows of the cell are degenerate, infeasible or failed, and left out.";
      }
    }
  }
  table.notes.push_back(fmt::format("{}{}: {}", metric,
                                    unit_of(metric).empty() ? "" : " (" + unit_of(metric) + ")",
                                    spread_note(summary)));
  if (const std::optional<bool> highest = best_is_highest(metric)) {
    mark_best(table, grid, *highest);
    table.best = best_note(table, summary, grid, *highest);
  }
  return table;
}

}  // namespace kvbench
