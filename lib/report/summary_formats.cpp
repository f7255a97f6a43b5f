#include "report/summary_formats.hpp"

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "report/csv.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// ----------------------------------------------------------------------------------- for readers

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

std::string latex_escape(std::string_view text) {
  static const std::map<char, std::string_view> special{{'\\', "\\textbackslash{}"},
                                                        {'~', "\\textasciitilde{}"},
                                                        {'^', "\\textasciicircum{}"},
                                                        {'<', "\\textless{}"},
                                                        {'>', "\\textgreater{}"},
                                                        {'|', "\\textbar{}"},
                                                        {'"', "\\textquotedbl{}"},
                                                        {'{', "\\{"},
                                                        {'}', "\\}"},
                                                        {'&', "\\&"},
                                                        {'%', "\\%"},
                                                        {'$', "\\$"},
                                                        {'#', "\\#"},
                                                        {'_', "\\_"}};
  std::string out;
  for (const char c : text) {
    const auto it = special.find(c);
    if (it != special.end()) {
      out += it->second;
    } else {
      out += std::iscntrl(static_cast<unsigned char>(c)) != 0 ? ' ' : c;
    }
  }
  return out;
}

constexpr CellStyle markdown_style{" ± ", "**", "**", "†", "-", markdown_escape};
constexpr CellStyle latex_style{" $\\pm$ ", "\\textbf{", "}", "$^\\dagger$", "--", latex_escape};

std::string heading(const SummaryColumn& column, const CellStyle& style) {
  return style.escape(column.unit.empty() ? column.name
                                          : fmt::format("{} ({})", column.name, column.unit));
}

std::vector<std::string> cells_of(const std::vector<SummaryCell>& row, const CellStyle& style) {
  std::vector<std::string> out;
  for (const SummaryCell& cell : row) {
    out.push_back(cell_text(cell, style));
  }
  return out;
}

std::vector<std::string> headings(const SummaryTable& table, const CellStyle& style) {
  std::vector<std::string> out;
  for (const SummaryColumn& column : table.columns) {
    out.push_back(heading(column, style));
  }
  return out;
}

std::vector<std::string> sentences(const SummaryTable& table) {
  std::vector<std::string> out = table.notes;
  if (!table.best.empty()) {
    out.push_back("Bold: " + table.best);
  }
  if (!table.partial.empty()) {
    out.push_back("†: " + table.partial);
  }
  return out;
}

std::string as_markdown(const SummaryTable& table) {
  std::string out = fmt::format("| {} |\n", fmt::join(headings(table, markdown_style), " | "));
  for (const SummaryColumn& column : table.columns) {
    out += column.right ? "| ---: " : "| :--- ";
  }
  out += "|\n";
  for (const auto& row : table.rows) {
    out += fmt::format("| {} |\n", fmt::join(cells_of(row, markdown_style), " | "));
  }
  for (const std::string& sentence : sentences(table)) {
    out += "\n" + markdown_escape(sentence) + "\n";
  }
  return out;
}

std::string as_latex(const SummaryTable& table) {
  std::string out = "% \\usepackage{booktabs}\n";
  for (const std::string& sentence : sentences(table)) {
    out += "% " + sentence + "\n";
  }
  out += "\\begin{tabular}{";
  for (const SummaryColumn& column : table.columns) {
    out += column.right ? 'r' : 'l';
  }
  out += fmt::format("}}\n\\toprule\n{} \\\\\n\\midrule\n",
                     fmt::join(headings(table, latex_style), " & "));
  for (const auto& row : table.rows) {
    const std::string line = fmt::format("{}", fmt::join(cells_of(row, latex_style), " & "));
    // A row that begins so would be an argument of the line end before it.
    const bool argument = line.starts_with('[') || line.starts_with('*');
    out += fmt::format("{}{} \\\\\n", argument ? "{}" : "", line);
  }
  return out + "\\bottomrule\n\\end{tabular}\n";
}

// ---------------------------------------------------------------------------------- for programs

using Field = std::pair<std::string, std::variant<std::string, Index, double>>;

std::vector<Field> fields_of(const SummaryColumn& column, const SummaryCell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value)) {
    return {{column.field, *text}};
  }
  if (const auto* count = std::get_if<Index>(&cell.value)) {
    return {{column.field, *count}};
  }
  const auto& estimate = std::get<Estimate>(cell.value);
  std::vector<Field> out{{"mean_" + column.field, estimate.mean},
                         {"sd_" + column.field, estimate.sd}};
  if (column.counted) {
    out.emplace_back("count_" + column.field, estimate.count);
  }
  return out;
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

// A text of a column of numbers as a number; one that is empty as null.
nlohmann::ordered_json json_of(const SummaryColumn& column, const std::string& text) {
  Index whole = 0;
  double value = 0.0;
  if (text.empty() && column.number) {
    return nullptr;
  }
  if (column.number && parse_number(text, whole)) {
    return whole;
  }
  if (column.number && parse_number(text, value)) {
    return value;
  }
  return text;
}

std::string as_json(const SummaryTable& table) {
  std::string out = "[";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    nlohmann::ordered_json object;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      for (const auto& [name, value] : fields_of(table.columns[c], table.rows[r][c])) {
        const auto* text = std::get_if<std::string>(&value);
        if (text != nullptr) {
          object[name] = json_of(table.columns[c], *text);
        } else {
          std::visit([&object, &key = name](const auto& v) { object[key] = v; }, value);
        }
      }
    }
    // A prompt's name may be no UTF-8: its odd bytes are replaced.
    out += fmt::format("{}\n  {}", r == 0 ? "" : ",",
                       object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return out + "\n]\n";
}

}  // namespace

std::string cell_text(const SummaryCell& cell, const CellStyle& style) {
  std::string text;
  if (const auto* words = std::get_if<std::string>(&cell.value)) {
    text = words->empty() ? std::string(style.nothing) : style.escape(*words);
  } else if (const auto* count = std::get_if<Index>(&cell.value)) {
    text = std::to_string(*count);
  } else {
    const auto& estimate = std::get<Estimate>(cell.value);
    text = estimate.count == 0 ? std::string(style.nothing) : three_digits(estimate.mean);
    if (estimate.count > 1) {
      text += fmt::format("{}{}", style.plus_minus, three_digits(standard_error(estimate)));
    }
  }
  if (cell.best) {
    text = fmt::format("{}{}{}", style.best_begin, text, style.best_end);
  }
  return cell.partial ? text + std::string(style.partial) : text;
}

std::string format_table(const SummaryTable& table, TableFormat format,
                         std::optional<std::size_t> width) {
  switch (format) {
    case TableFormat::text: return table_as_text(table, width);
    case TableFormat::markdown: return as_markdown(table);
    case TableFormat::latex: return as_latex(table);
    case TableFormat::csv: return as_csv(table);
    case TableFormat::json: return as_json(table);
  }
  return {};
}

FileKind summary_kind() {
  return text_kind("a summary", fmt::format("{}", fmt::join(kGroupColumns, ",")));
}

}  // namespace kvbench
