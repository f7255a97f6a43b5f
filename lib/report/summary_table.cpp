#include "report/summary_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/printable.hpp"
#include "report/csv.hpp"
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
  for (std::size_t g = 0; g < summary.groups.size(); ++g) {
    column.cells.push_back(cell_of(summary.groups[g], g));
  }
  table.columns.push_back(std::move(column));
}

std::string shown(const std::string& text, Detail detail) {
  return text.empty() && detail != Detail::all ? "-" : text;
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
  add_column(table, summary, {"algorithm", "", false},
             [&](const SummaryGroup&, std::size_t g) { return shown(labels[g], detail); });
  if (!brief) {
    add_column(table, summary, {"params", "", false},
               [&](const SummaryGroup&, std::size_t g) { return shown(params[g], detail); });
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
  add_column(table, summary, {budget ? "budget" : name, unit_of(name), number},
             [&](const SummaryGroup& g, std::size_t) { return shown(g.key[at], detail); });
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
      add_column(table, summary, {name, "rows"},
                 [&](const SummaryGroup& g, std::size_t) { return field_text(count(g)); });
    }
  }
}

void add_metric(SummaryTable& table, const Summary& summary, std::size_t m, Detail detail) {
  const std::string& name = summary.metrics[m];
  if (detail == Detail::all) {
    add_column(table, summary, {"mean_" + name, ""},
               [m](const SummaryGroup& g, std::size_t) { return number_text(g.moments[m].mean); });
    add_column(table, summary, {"sd_" + name, ""},
               [m](const SummaryGroup& g, std::size_t) { return number_text(g.moments[m].sd); });
    return;
  }
  add_column(
      table, summary, {name, unit_of(name), true, true}, [m](const SummaryGroup& g, std::size_t) {
        const Estimate e{g.moments[m].mean, g.moments[m].sd, g.count};
        const std::string mean = e.count == 0 ? "-" : three_digits(e.mean);
        return e.count < 2 ? mean : fmt::format("{} ± {}", mean, three_digits(standard_error(e)));
      });
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

std::string markdown_escape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto word = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    // An underscore between letters is one.
    const bool plain_underscore = text[i] == '_' && word(i - 1) && word(i + 1);
    if (std::string_view("\\|*_`<[").find(text[i]) != std::string_view::npos && !plain_underscore) {
      out += '\\';
    }
    out += std::iscntrl(static_cast<unsigned char>(text[i])) != 0 ? ' ' : text[i];
  }
  return out;
}

std::string as_markdown(const SummaryTable& table) {
  std::vector<std::string> lines(2 + table.rows);
  for (const SummaryColumn& column : table.columns) {
    const std::string unit = column.unit.empty() ? "" : fmt::format(" ({})", column.unit);
    lines[0] += fmt::format("| {} ", markdown_escape(column.name + unit));
    lines[1] += column.right ? "| ---: " : "| :--- ";
    for (std::size_t r = 0; r < table.rows; ++r) {
      lines[2 + r] += fmt::format("| {} ", markdown_escape(column.cells[r]));
    }
  }
  return fmt::format("{}|\n\n{}\n", fmt::join(lines, "|\n"), markdown_escape(table.note));
}

std::string as_csv(const SummaryTable& table) {
  std::vector<Fields> lines(1 + table.rows);
  for (const SummaryColumn& column : table.columns) {
    lines[0].push_back(column.name);
    for (std::size_t r = 0; r < table.rows; ++r) {
      lines[1 + r].push_back(column.cells[r]);
    }
  }
  std::string out;
  for (const Fields& line : lines) {
    out += csv_line(line);
  }
  return out;
}

constexpr std::size_t kGap = 2;          // between columns
constexpr std::size_t kShortLabel = 12;  // labels are not cut below this
constexpr std::string_view kEllipsis = "…";

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

// Code points.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

std::string cut(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) {
    return text;
  }
  std::size_t end = 0;
  for (std::size_t seen = 0; end < text.size(); ++end) {
    seen += begins_character(text[end]) ? 1 : 0;
    if (seen == width) {
      break;
    }
  }
  return text.substr(0, end) + std::string(kEllipsis);
}

std::size_t width_of(const SummaryColumn& column) {
  std::size_t width = std::max(width_of(column.name), width_of(column.unit));
  for (const std::string& cell : column.cells) {
    width = std::max(width, width_of(cell));
  }
  return width;
}

// Pads the cells on the right, so that their means are aligned.
void align(std::vector<std::string>& cells) {
  const auto tail = [](const std::string& cell) {
    return width_of(std::string_view(cell).substr(std::min(cell.size(), cell.find(' '))));
  };
  std::size_t longest = 0;
  for (const std::string& cell : cells) {
    longest = std::max(longest, tail(cell));
  }
  for (std::string& cell : cells) {
    cell += std::string(longest - tail(cell), ' ');
  }
}

std::size_t width_of(const std::vector<SummaryColumn>& columns) {
  std::size_t total = 0;
  for (const SummaryColumn& column : columns) {
    total += width_of(column) + kGap;
  }
  return total - kGap;
}

// Whether all rows have different labels.
bool rows_differ(const std::vector<SummaryColumn>& columns, std::size_t labels) {
  std::set<std::vector<std::string>> seen;
  for (std::size_t r = 0; r < columns.front().cells.size(); ++r) {
    std::vector<std::string> label;
    for (std::size_t c = 0; c < labels; ++c) {
      label.push_back(columns[c].cells[r]);
    }
    if (!seen.insert(std::move(label)).second) {
      return false;
    }
  }
  return true;
}

// Cuts the widest label so that the columns fit. Returns false and cuts nothing if it would become
// too short or rows would get equal labels.
bool cut_label(std::vector<SummaryColumn>& columns, std::size_t labels, std::size_t width) {
  const auto widest = std::ranges::max_element(
      columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(labels), {},
      [](const SummaryColumn& column) { return width_of(column); });
  const std::size_t excess = width_of(columns) - width;
  if (width_of(*widest) < excess + std::max(kShortLabel, width_of(widest->unit))) {
    return false;
  }
  const SummaryColumn whole = *widest;
  widest->name = cut(whole.name, width_of(whole) - excess);
  for (std::string& cell : widest->cells) {
    cell = cut(cell, width_of(whole) - excess);
  }
  if (!rows_differ(columns, labels)) {
    *widest = whole;
    return false;
  }
  return true;
}

// Cuts a label or drops columns, so that the table fits or has one column beside its labels.
// Returns sentences that say so.
std::vector<std::string> fit(std::vector<SummaryColumn>& columns, std::size_t labels,
                             std::size_t width) {
  std::vector<std::string> said;
  std::vector<std::string> dropped;
  while (width_of(columns) > width) {
    if (cut_label(columns, labels, width)) {
      said.emplace_back("Labels are cut to fit the width.");
    } else if (columns.size() > labels + 1) {
      dropped.insert(dropped.begin(), columns.back().name);
      columns.pop_back();
    } else {
      break;
    }
  }
  if (!dropped.empty()) {
    said.push_back(fmt::format("Left out to fit the width: {}; --format csv has all.",
                               fmt::join(dropped, ", ")));
  }
  return said;
}

void add_line(std::string& out, std::string line, std::optional<std::size_t> width) {
  line.erase(line.find_last_not_of(' ') + 1);
  out += (width ? cut(line, *width) : line) + '\n';
}

// Wraps at the width.
void add_sentence(std::string& out, std::string_view text, std::optional<std::size_t> width) {
  std::string line;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (width && !line.empty() && width_of(line) + 1 + width_of(word) > *width) {
      add_line(out, std::exchange(line, {}), width);
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  add_line(out, line, width);
}

std::string as_text(const SummaryTable& table, std::optional<std::size_t> width) {
  std::vector<SummaryColumn> columns = table.columns;
  for (SummaryColumn& column : columns) {
    column.name = printable(column.name);
    std::ranges::transform(column.cells, column.cells.begin(), printable);
    if (column.estimates) {
      align(column.cells);
    }
  }
  std::vector<std::string> sentences{table.note};
  if (width) {
    const std::vector<std::string> said = fit(columns, table.labels, *width);
    sentences.insert(sentences.end(), said.begin(), said.end());
  }
  std::vector<std::size_t> widths;
  for (const SummaryColumn& column : columns) {
    widths.push_back(width_of(column));
  }
  std::string out;
  const auto add_row = [&](const auto& text_of) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string& text = text_of(columns[c]);
      const std::string pad(widths[c] - width_of(text), ' ');
      line += c == 0 ? "" : std::string(kGap, ' ');
      line += columns[c].right ? pad + text : text + pad;
    }
    add_line(out, std::move(line), width);
  };
  add_row([](const SummaryColumn& c) -> const std::string& { return c.name; });
  if (std::ranges::any_of(columns, [](const SummaryColumn& c) { return !c.unit.empty(); })) {
    add_row([](const SummaryColumn& c) -> const std::string& { return c.unit; });
  }
  add_line(out, std::string(width_of(columns), '-'), width);
  for (std::size_t r = 0; r < table.rows; ++r) {
    add_row([r](const SummaryColumn& c) -> const std::string& { return c.cells[r]; });
  }
  for (const std::string& sentence : sentences) {
    add_sentence(out, sentence, width);
  }
  return out;
}

}  // namespace

SummaryTable summary_table(const Summary& summary, Detail detail) {
  SummaryTable table;
  table.rows = summary.groups.size();
  add_method(table, summary, detail);
  for (std::size_t c = kParams + 1; c < summary.group_columns.size(); ++c) {
    add_key(table, summary, c, detail);
  }
  table.labels = table.columns.size();
  add_counts(table, summary, detail);
  for (std::size_t m = 0; m < summary.metrics.size(); ++m) {
    add_metric(table, summary, m, detail);
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

std::string format_table(const SummaryTable& table, TableFormat format,
                         std::optional<std::size_t> width) {
  switch (format) {
    case TableFormat::text: return as_text(table, width);
    case TableFormat::markdown: return as_markdown(table);
    case TableFormat::csv: return as_csv(table);
  }
  return {};
}

FileKind summary_kind() {
  return text_kind("a summary", fmt::format("{}", fmt::join(kGroupColumns, ",")));
}

}  // namespace kvbench
