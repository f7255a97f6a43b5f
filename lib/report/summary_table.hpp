// A summary laid out in rows and columns, and as text: for a terminal, for pages, for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_guard.hpp"
#include "core/types.hpp"
#include "report/summary.hpp"

namespace kvbench {

/// How much of a summary a table shows.
enum class Detail {
  brief,   ///< for readers: an algorithm with those of its parameters that differ
  params,  ///< for readers: params in a column of their own
  all      ///< for programs: every column
};

struct SummaryColumn {
  std::string name;
  std::string unit;                     ///< "" if there is none
  bool right = true;                    ///< aligned right: numbers
  bool estimates = false;               ///< cells are `mean ± standard error`, or a mean
  std::vector<std::string> cells = {};  ///< by row
};

struct SummaryTable {
  std::vector<SummaryColumn> columns;
  std::size_t rows = 0;
  std::size_t labels = 0;  ///< leading columns that identify a row
  std::string note;        ///< sentence below the table
};

/// A row per group: counts, and per metric a column with mean and standard error to three digits;
/// for programs `mean_X` and `sd_X` in full precision. Readers see `-` where there is no value.
SummaryTable summary_table(const Summary& summary, Detail detail);

/// Mean and standard deviation over `count` rows.
struct Estimate {
  double mean;
  double sd;
  Index count;
};

/// Three significant digits, `nan`, `inf`: 0.0500, 1230 for 1234, 1.50e-07.
std::string three_digits(double value);

/// The standard error of the mean, sd / sqrt(count); NaN for fewer than two rows, 0 if the sd is
/// only the rounding of a sum of equal values.
double standard_error(const Estimate& estimate);

/// Labels like `balancekv T=2`: per group the algorithm and those of its parameters whose value
/// differs between the groups of that algorithm.
std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params);

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
