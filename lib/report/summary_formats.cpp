#include "report/summary_formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "core/printable.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// A cell for readers: `-` if empty, `mean ± error` for an Estimate of two rows or more. `escape` is
// applied to text.
std::string cell_text(const SummaryCell& cell, std::string (*escape)(std::string_view)) {
  if (const auto* words = std::get_if<std::string>(&cell)) {
    return words->empty() ? "-" : escape(*words);
  }
  if (const auto* count = std::get_if<Index>(&cell)) {
    return std::to_string(*count);
  }
  const auto& estimate = std::get<Estimate>(cell);
  const std::string mean = estimate.count == 0 ? "-" : three_digits(estimate.mean);
  return estimate.count > 1 ? fmt::format("{} ± {}", mean, three_digits(standard_error(estimate)))
                            : mean;
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
  std::string names;
  std::string rule;
  for (const SummaryColumn& column : table.columns) {
    names += fmt::format(
        "| {} ",
        markdown_escape(column.unit.empty() ? column.name
                                            : fmt::format("{} ({})", column.name, column.unit)));
    rule += column.right ? "| ---: " : "| :--- ";
  }
  std::string out = names + "|\n" + rule + "|\n";
  for (const auto& row : table.rows) {
    for (const SummaryCell& cell : row) {
      out += fmt::format("| {} ", cell_text(cell, markdown_escape));
    }
    out += "|\n";
  }
  return out + "\n" + markdown_escape(table.note) + "\n";
}

using Field = std::pair<std::string, std::variant<std::string, Index, double>>;

std::vector<Field> fields_of(const SummaryColumn& column, const SummaryCell& cell) {
  if (const auto* estimate = std::get_if<Estimate>(&cell)) {
    return {{"mean_" + column.field, estimate->mean}, {"sd_" + column.field, estimate->sd}};
  }
  if (const auto* count = std::get_if<Index>(&cell)) {
    return {{column.field, *count}};
  }
  return {{column.field, std::get<std::string>(cell)}};
}

std::string as_csv(const SummaryTable& table) {
  std::string out;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    Fields names;
    Fields values;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      for (const auto& [name, value] : fields_of(table.columns[c], table.rows[r][c])) {
        names.push_back(name);
        values.push_back(std::visit([](const auto& v) { return field_text(v); }, value));
      }
    }
    out += (r == 0 ? csv_line(names) : "") + csv_line(values);
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

struct TextColumn {
  std::string name;
  std::string unit;
  std::vector<std::string> cells;
  bool right = true;

  std::size_t width() const {
    std::size_t w = std::max(width_of(name), width_of(unit));
    for (const std::string& cell : cells) {
      w = std::max(w, width_of(cell));
    }
    return w;
  }
};

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

std::vector<TextColumn> text_columns(const SummaryTable& table) {
  std::vector<TextColumn> out;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const SummaryColumn& column = table.columns[c];
    out.push_back({printable(column.name), column.unit, {}, column.right});
    bool estimates = false;
    for (const auto& row : table.rows) {
      out.back().cells.push_back(cell_text(row[c], printable));
      estimates = estimates || std::holds_alternative<Estimate>(row[c]);
    }
    if (estimates) {
      align(out.back().cells);
    }
  }
  return out;
}

std::size_t width_of(const std::vector<TextColumn>& columns) {
  std::size_t total = 0;
  for (const TextColumn& column : columns) {
    total += column.width() + kGap;
  }
  return total - kGap;
}

// Whether all rows have different labels.
bool rows_differ(const std::vector<TextColumn>& columns, std::size_t labels) {
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
bool cut_label(std::vector<TextColumn>& columns, std::size_t labels, std::size_t width) {
  const auto widest = std::ranges::max_element(
      columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(labels), {},
      &TextColumn::width);
  const std::size_t excess = width_of(columns) - width;
  if (widest->width() < excess + std::max(kShortLabel, width_of(widest->unit))) {
    return false;
  }
  const TextColumn whole = *widest;
  widest->name = cut(whole.name, whole.width() - excess);
  for (std::string& cell : widest->cells) {
    cell = cut(cell, whole.width() - excess);
  }
  if (!rows_differ(columns, labels)) {
    *widest = whole;
    return false;
  }
  return true;
}

// Cuts a label or drops columns, so that the table fits or has one column beside its labels.
// Returns sentences that say so.
std::vector<std::string> fit(std::vector<TextColumn>& columns, std::size_t labels,
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
  std::vector<TextColumn> columns = text_columns(table);
  std::vector<std::string> sentences{table.note};
  if (width) {
    const std::vector<std::string> said = fit(columns, table.labels, *width);
    sentences.insert(sentences.end(), said.begin(), said.end());
  }
  std::vector<std::size_t> widths;
  for (const TextColumn& column : columns) {
    widths.push_back(column.width());
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
  add_row([](const TextColumn& c) -> const std::string& { return c.name; });
  if (std::ranges::any_of(columns, [](const TextColumn& c) { return !c.unit.empty(); })) {
    add_row([](const TextColumn& c) -> const std::string& { return c.unit; });
  }
  add_line(out, std::string(width_of(columns), '-'), width);
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    add_row([r](const TextColumn& c) -> const std::string& { return c.cells[r]; });
  }
  for (const std::string& sentence : sentences) {
    add_sentence(out, sentence, width);
  }
  return out;
}

}  // namespace

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
