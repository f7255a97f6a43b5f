// A summary laid out in rows and columns: the one model that every format prints.
#pragma once

#include <optional>
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
  all      ///< for programs: every column, whether it says something or not
};

/// Mean and standard deviation over `count` rows.
struct Estimate {
  double mean;
  double sd;
  Index count;
};

struct SummaryCell {
  std::variant<std::string, Index, Estimate> value;
  bool best = false;     ///< of its column, by best_is_highest() and SummaryTable::best
  bool partial = false;  ///< some rows of the cell were left out, and no column says so
};

struct SummaryColumn {
  std::string name;
  std::string unit;      ///< "" where there is none
  std::string field;     ///< what a program calls it; of an Estimate behind `mean_` and `sd_`
  bool right = true;     ///< aligned right: numbers
  bool number = false;   ///< its texts are numbers
  bool counted = false;  ///< an Estimate's count is a field as well: `count_`
};

struct SummaryTable {
  std::vector<SummaryColumn> columns;
  std::vector<std::vector<SummaryCell>> rows;  ///< as wide as `columns`
  std::size_t labels = 0;                      ///< the first columns, which say what a row is
  std::string best;                ///< which cells are the best; "" where none is marked
  std::string partial;             ///< what a mark of partial cells means; "" where there are none
  std::vector<std::string> notes;  ///< sentences to stand below the table
};

/// A row per group: counts, and a column per metric.
SummaryTable list_table(const Summary& summary, Detail detail);

/// A row per method (and value of the other group columns), a column per value of `across`, which
/// is a group column; in the cells the summary's only metric. Groups without a budget have a column
/// of their own, `native`. Throws InputError for several metrics.
SummaryTable across_table(const Summary& summary, const std::string& across, Detail detail);

/// Whether the highest mean of this metric is the best, or the lowest; nothing: neither, as of
/// sizes, which were asked for. Times and errors are best when low.
std::optional<bool> best_is_highest(std::string_view metric);

/// Three significant digits, `nan`, `inf`: 0.0500, 1230 for 1234, 1.50e-07.
std::string three_digits(double value);

/// The standard error of the mean, sd / sqrt(count); NaN for fewer than two rows. What is only the
/// rounding of a sum of equal values is 0.
double standard_error(const Estimate& estimate);

/// Labels like `balancekv T=2`: per group the algorithm and those of its parameters whose value
/// differs between the groups of that algorithm.
std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params);

}  // namespace kvbench
