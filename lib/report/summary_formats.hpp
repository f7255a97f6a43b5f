// A summary's table as text: for a terminal, for pages, for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/output_guard.hpp"
#include "report/summary_table.hpp"

namespace kvbench {

enum class TableFormat : std::uint8_t { text, markdown, csv };

constexpr std::string_view name(TableFormat format) {
  switch (format) {
    case TableFormat::text: return "text";
    case TableFormat::markdown: return "markdown";
    case TableFormat::csv: return "csv";
  }
  return "?";
}

/// CSV is for programs: it has full precision, the others three significant digits.
constexpr bool for_programs(TableFormat format) {
  return format == TableFormat::csv;
}

/// The table and its note in this format.
///
/// text: aligned. With `width`, lines have at most that many characters: the longest label is cut
/// with an ellipsis while labels stay different, or columns are dropped from the right, and a
/// sentence says so. markdown: GitHub's. csv: fields `mean_X` and `sd_X` per metric X.
std::string format_table(const SummaryTable& table, TableFormat format,
                         std::optional<std::size_t> width = {});

/// CSV files of summaries, whatever their columns.
FileKind summary_kind();

}  // namespace kvbench
