// A summary as text: the terminal's table, the CSV, the short labels. Numbers come from
// summary.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "report/schema.hpp"
#include "report/summary.hpp"

namespace kvbench {
namespace {

struct TextColumn {
  std::string name;
  std::string unit;
  std::vector<std::string> cells;
  bool right = true;
};

/// Code points, so that a prompt's accented name does not shift its line.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string unit_of(std::string_view name) {
  const auto it = std::ranges::find(columns(), name, &Column::name);
  return it == columns().end() ? "" : std::string(it->unit);
}

std::string short_number(double value) {
  return value != value ? "nan" : fmt::format("{:.4g}", value);
}

void add_line(std::string& out, const std::vector<TextColumn>& table,
              const std::vector<std::size_t>& widths, const auto& cell) {
  std::string line;
  for (std::size_t c = 0; c < table.size(); ++c) {
    const std::string& text = cell(table[c]);
    const std::string pad(widths[c] - width_of(text), ' ');
    line += c > 0 ? "  " : "";
    line += table[c].right ? pad + text : text + pad;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + '\n';
}

std::string layout(const std::vector<TextColumn>& table) {
  std::vector<std::size_t> widths;
  std::size_t total = 0;
  bool units = false;
  for (const TextColumn& c : table) {
    std::size_t w = std::max(width_of(c.name), width_of(c.unit));
    for (const std::string& cell : c.cells) {
      w = std::max(w, width_of(cell));
    }
    widths.push_back(w);
    total += w + 2;
    units = units || !c.unit.empty();
  }
  std::string out;
  add_line(out, table, widths, [](const TextColumn& c) -> const std::string& { return c.name; });
  if (units) {
    add_line(out, table, widths, [](const TextColumn& c) -> const std::string& { return c.unit; });
  }
  out += std::string(total - 2, '-') + '\n';
  for (std::size_t r = 0; r < table.front().cells.size(); ++r) {
    add_line(out, table, widths,
             [r](const TextColumn& c) -> const std::string& { return c.cells[r]; });
  }
  return out;
}

}  // namespace

std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params) {
  // Per algorithm and parameter: the values seen, and by how many groups.
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
      // Absent from some groups: named, but for what another parameter's value brings with it
      // (attention-matching's keys=h2o brings h2o.heavy_ratio).
      const bool brought = key.find('.') != std::string::npos;
      if (s.values.size() > 1 || (s.groups < groups[algorithms[i]] && !brought)) {
        label += fmt::format(" {}={}", key, value);
      }
    }
    labels.push_back(std::move(label));
  }
  return labels;
}

std::string summary_text(const Summary& summary, bool full_params) {
  std::vector<std::string> names;
  std::vector<std::string> params;
  for (const SummaryGroup& g : summary.groups) {
    names.push_back(g.key[0]);
    params.push_back(g.key[1]);
  }
  std::vector<TextColumn> table;
  table.push_back({"algorithm", "", full_params ? names : short_labels(names, params), false});
  if (full_params) {
    table.push_back({"params", "", params, false});
  }
  const auto add = [&](std::string name, std::string unit, const auto& cell) {
    TextColumn column{std::move(name), std::move(unit), {}, true};
    for (const SummaryGroup& g : summary.groups) {
      column.cells.push_back(cell(g));
    }
    table.push_back(std::move(column));
  };
  for (std::size_t c = 2; c < summary.group_columns.size(); ++c) {
    const std::string& name = summary.group_columns[c];
    const bool budget = name == "budget_requested";
    if (budget && std::all_of(summary.groups.begin(), summary.groups.end(),
                              [c](const SummaryGroup& g) { return g.key[c].empty(); })) {
      continue;
    }
    add(budget ? "budget" : name, unit_of(name), [c, budget](const SummaryGroup& g) {
      double value = 0.0;
      if (budget && parse_number(g.key[c], value)) {
        return short_number(value);
      }
      return g.key[c].empty() ? std::string("-") : g.key[c];
    });
  }
  add("count", "rows", [](const SummaryGroup& g) { return std::to_string(g.count); });
  // Columns of zeros say nothing; one that is not zero must be seen.
  for (const auto& [name, member] : {std::pair{"degenerate", &SummaryGroup::degenerate},
                                     {"infeasible", &SummaryGroup::infeasible},
                                     {"failed", &SummaryGroup::failed}}) {
    const auto count = [member = member](const SummaryGroup& g) { return g.*member; };
    if (std::ranges::any_of(summary.groups, count)) {
      add(name, "rows", [&](const SummaryGroup& g) { return std::to_string(count(g)); });
    }
  }
  for (std::size_t m = 0; m < summary.metrics.size(); ++m) {
    add(summary.metrics[m], unit_of(summary.metrics[m]), [m](const SummaryGroup& g) {
      return g.count == 0 ? std::string("-") : short_number(g.moments[m].mean);
    });
    add("sd", "", [m](const SummaryGroup& g) {
      return g.count < 2 ? std::string("-") : short_number(g.moments[m].sd);
    });
  }
  return layout(table);
}

FileKind summary_kind() {
  return text_kind("a summary", fmt::format("{}", fmt::join(kGroupColumns, ",")));
}

std::vector<Fields> summary_csv(const Summary& summary) {
  Fields header = summary.group_columns;
  header.insert(header.end(), {"count", "degenerate", "infeasible", "failed"});
  for (const std::string& metric : summary.metrics) {
    header.insert(header.end(), {"mean_" + metric, "sd_" + metric});
  }
  std::vector<Fields> lines{header};
  for (const SummaryGroup& g : summary.groups) {
    Fields fields = g.key;
    for (const Index n : {g.count, g.degenerate, g.infeasible, g.failed}) {
      fields.push_back(std::to_string(n));
    }
    for (const Moments& m : g.moments) {
      fields.insert(fields.end(), {number_text(m.mean), number_text(m.sd)});
    }
    lines.push_back(std::move(fields));
  }
  return lines;
}

}  // namespace kvbench
