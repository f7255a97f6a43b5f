// A summary laid out in rows and columns, which every format prints.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/types.hpp"
#include "report/summary.hpp"

namespace kvbench {

/// How much of a summary a table shows.
enum class Detail {
  brief,   ///< for readers: an algorithm with those of its parameters that differ
  params,  ///< for readers: params in a column of their own
  all      ///< for programs: every column
};

/// Mean and standard deviation over `count` rows.
struct Estimate {
  double mean;
  double sd;
  Index count;
};

using SummaryCell = std::variant<std::string, Index, Estimate>;

struct SummaryColumn {
  std::string name;
  std::string unit;     ///< "" if there is none
  std::string field;    ///< name for programs; of an Estimate after `mean_` and `sd_`
  bool right = true;    ///< aligned right: numbers
  bool number = false;  ///< its texts are numbers
};

struct SummaryTable {
  std::vector<SummaryColumn> columns;
  std::vector<std::vector<SummaryCell>> rows;  ///< as wide as `columns`
  std::size_t labels = 0;                      ///< leading columns that identify a row
  std::string note;                            ///< sentence below the table
};

/// A row per group: counts, and a column per metric.
SummaryTable summary_table(const Summary& summary, Detail detail);

/// Three significant digits, `nan`, `inf`: 0.0500, 1230 for 1234, 1.50e-07.
std::string three_digits(double value);

/// The standard error of the mean, sd / sqrt(count); NaN for fewer than two rows, 0 if the sd is
/// only the rounding of a sum of equal values.
double standard_error(const Estimate& estimate);

/// Labels like `balancekv T=2`: per group the algorithm and those of its parameters whose value
/// differs between the groups of that algorithm.
std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params);

}  // namespace kvbench
