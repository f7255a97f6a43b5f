#include "report/summary_formats.hpp"

#include <fmt/format.h>

#include <cctype>
#include <utility>
#include <vector>

#include "report/csv.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

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

}  // namespace

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

std::string format_table(const SummaryTable& table, TableFormat format,
                         std::optional<std::size_t> width) {
  switch (format) {
    case TableFormat::text: return table_as_text(table, width);
    case TableFormat::markdown: return as_markdown(table);
    case TableFormat::csv: return as_csv(table);
  }
  return {};
}

FileKind summary_kind() {
  return text_kind("a summary", fmt::format("{}", fmt::join(kGroupColumns, ",")));
}

}  // namespace kvbench
