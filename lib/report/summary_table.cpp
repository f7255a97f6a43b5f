#include "report/summary_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kAlgorithm = 0;  // positions in a group's key, as in kGroupColumns
constexpr std::size_t kParams = 1;
constexpr std::string_view kBudget = kGroupColumns[2];

const Column* known(std::string_view name) {
  const auto it = std::ranges::find(columns(), name, &Column::name);
  return it == columns().end() ? nullptr : &*it;
}

std::string unit_of(std::string_view name) {
  return std::string(known(name) == nullptr ? "" : known(name)->unit);
}

// A column with a cell for each group.
template <class CellOf>
void add_column(SummaryTable& table, const Summary& summary, SummaryColumn column,
                const CellOf& cell_of) {
  table.columns.push_back(std::move(column));
  for (std::size_t g = 0; g < summary.groups.size(); ++g) {
    table.rows[g].push_back(cell_of(summary.groups[g], g));
  }
}

// Columns that name the method.
void add_method(SummaryTable& table, const Summary& summary, Detail detail) {
  std::vector<std::string> names;
  std::vector<std::string> params;
  for (const SummaryGroup& g : summary.groups) {
    names.push_back(g.key[kAlgorithm]);
    params.push_back(g.key[kParams]);
  }
  const bool brief = detail == Detail::brief;
  const std::vector<std::string> labels = brief ? short_labels(names, params) : names;
  add_column(table, summary, {"algorithm", "", "algorithm", false},
             [&](const SummaryGroup&, std::size_t g) { return labels[g]; });
  if (!brief) {
    add_column(table, summary, {"params", "", "params", false},
               [&](const SummaryGroup&, std::size_t g) { return params[g]; });
  }
}

// One of the other group columns. Readers are not shown a budget that no group has.
void add_key(SummaryTable& table, const Summary& summary, std::size_t at, Detail detail) {
  const std::string& name = summary.group_columns[at];
  const bool budget = detail != Detail::all && name == kBudget;
  if (budget && std::ranges::all_of(summary.groups,
                                    [at](const SummaryGroup& g) { return g.key[at].empty(); })) {
    return;
  }
  const bool number = known(name) != nullptr && known(name)->number;
  add_column(table, summary, {budget ? "budget" : name, unit_of(name), name, number, number},
             [at](const SummaryGroup& g, std::size_t) { return g.key[at]; });
}

void add_counts(SummaryTable& table, const Summary& summary, Detail detail) {
  using Member = Index SummaryGroup::*;
  for (const auto& [name, member] : {std::pair<const char*, Member>{"count", &SummaryGroup::count},
                                     {"degenerate", &SummaryGroup::degenerate},
                                     {"infeasible", &SummaryGroup::infeasible},
                                     {"failed", &SummaryGroup::failed}}) {
    // Readers are not shown columns of zeros.
    const auto count = [member = member](const SummaryGroup& g) { return g.*member; };
    if (detail == Detail::all || member == &SummaryGroup::count ||
        std::ranges::any_of(summary.groups, count)) {
      add_column(table, summary, {name, "rows", name},
                 [&](const SummaryGroup& g, std::size_t) { return count(g); });
    }
  }
}

// What the standard errors are over.
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

SummaryTable summary_table(const Summary& summary, Detail detail) {
  SummaryTable table;
  table.rows.resize(summary.groups.size());
  add_method(table, summary, detail);
  for (std::size_t c = kParams + 1; c < summary.group_columns.size(); ++c) {
    add_key(table, summary, c, detail);
  }
  table.labels = table.columns.size();
  add_counts(table, summary, detail);
  for (std::size_t m = 0; m < summary.metrics.size(); ++m) {
    const std::string& name = summary.metrics[m];
    add_column(table, summary, {name, unit_of(name), name},
               [m](const SummaryGroup& g, std::size_t) {
                 return Estimate{g.moments[m].mean, g.moments[m].sd, g.count};
               });
  }
  table.note = spread_note(summary);
  return table;
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
  constexpr int least = -4;
  constexpr int most = 5;
  return exponent < least || exponent > most
             ? text
             : fmt::format("{:.{}f}", rounded, std::max(0, 2 - exponent));
}

double standard_error(const Estimate& e) {
  constexpr double rounding = 1e-12;  // of sums of millions of equal values
  if (e.count < 2) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return e.sd < rounding * std::abs(e.mean) ? 0.0 : e.sd / std::sqrt(static_cast<double>(e.count));
}

std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params) {
  struct Seen {
    std::set<std::string> values;
    std::size_t groups = 0;
  };
  std::map<std::string_view, std::map<std::string, Seen>> seen;
  std::map<std::string_view, std::size_t> groups;
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    ++groups[algorithms[i]];
    for (auto& [key, value] : split_params(params[i])) {
      Seen& s = seen[algorithms[i]][key];
      s.values.insert(value);
      ++s.groups;
    }
  }
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    std::string label = algorithms[i];
    for (const auto& [key, value] : split_params(params[i])) {
      const Seen& s = seen[algorithms[i]][key];
      // A parameter that some groups lack is shown too, unless another parameter implies it
      // (attention-matching's keys=h2o implies h2o.heavy_ratio).
      const bool implied = key.find('.') != std::string::npos;
      if (s.values.size() > 1 || (s.groups < groups[algorithms[i]] && !implied)) {
        label += fmt::format(" {}={}", key, value);
      }
    }
    labels.push_back(std::move(label));
  }
  return labels;
}

}  // namespace kvbench
