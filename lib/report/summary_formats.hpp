// A summary's table as text: for the terminal, for papers, for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/output_guard.hpp"
#include "report/summary_table.hpp"

namespace kvbench {

enum class TableFormat : std::uint8_t { text, markdown, latex, csv, json };

constexpr std::string_view name(TableFormat format) {
  switch (format) {
    case TableFormat::text: return "text";
    case TableFormat::markdown: return "markdown";
    case TableFormat::latex: return "latex";
    case TableFormat::csv: return "csv";
    case TableFormat::json: return "json";
  }
  return "?";
}

/// Formats for programs have full precision, others three significant digits and marks.
constexpr bool for_programs(TableFormat format) {
  return format == TableFormat::csv || format == TableFormat::json;
}

/// The table with what is to be said of it, in this format.
///
/// text: aligned; lines of at most `width` characters, if any: long labels are cut with an
/// ellipsis as long as they stay different, then columns are left out from the right, and a line
/// says so. markdown: GitHub's. latex: a tabular with booktabs' rules. csv: per mean the fields
/// `mean_X` and `sd_X`. json: an array of an object per row with the same names; NaN and infinity,
/// and what is empty, are null.
std::string format_table(const SummaryTable& table, TableFormat format,
                         std::optional<std::size_t> width = {});

/// Files that hold a summary as CSV, whatever its columns and metrics.
FileKind summary_kind();

/// How a format for readers writes a cell.
struct CellStyle {
  std::string_view plus_minus;
  std::string_view best_begin, best_end;
  std::string_view partial;
  std::string_view nothing;                 ///< an empty cell
  std::string (*escape)(std::string_view);  ///< names and texts of tables, on one line
};

/// A cell in this style: `-` for nothing, `mean ± error` for an Estimate of two rows or more.
std::string cell_text(const SummaryCell& cell, const CellStyle& style);

/// TableFormat::text.
std::string table_as_text(const SummaryTable& table, std::optional<std::size_t> width);

}  // namespace kvbench
