// Reduces result rows to mean, standard deviation and count per group. Computes nothing else.
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "report/row_filter.hpp"
#include "report/summary_rows.hpp"

namespace kvbench {

/// Every summary groups by these.
inline constexpr std::array<std::string_view, 3> kGroupColumns{"algorithm", "params",
                                                               "budget_requested"};

/// What the rows of a group may differ in, by the columns' names and in plain words.
struct SpreadColumn {
  std::string_view name;
  std::string_view words;
};
inline constexpr std::array<SpreadColumn, 5> kSpreadColumns{{{"trace", "traces"},
                                                             {"prompt", "prompts"},
                                                             {"layer", "layers"},
                                                             {"q_head", "query heads"},
                                                             {"seed", "seeds"}}};

struct SummaryOptions {
  /// Columns to reduce; numeric.
  std::vector<std::string> metrics{"rel_error", "ratio",       "middle_ratio",
                                   "mass_kept", "log_z_error", "compress_ms"};
  /// Columns to group by, besides algorithm, params and budget_requested.
  std::vector<std::string> by;
  /// Column to group by whose groups will stand side by side, and be compared (across_table()).
  /// Then the settings must not differ between the methods either. Empty: none.
  std::string across;
  /// Rows that count: those that all of these keep.
  std::vector<RowFilter> where;
  /// Rows that differ in a setting (model, protocol, sink, ...) may enter one mean.
  bool pool = false;
  /// Metric or group column to order by, ascending, NaN last; empty: first appearance.
  std::string sort;
  bool descending = false;
};

/// Mean and standard deviation (n - 1) of one metric in one group. NaN in the data gives NaN, an
/// infinite value an infinite mean and a NaN sd; an empty group has NaN for both, one value a NaN
/// sd.
struct Moments {
  double mean;
  double sd;
};

struct SummaryGroup {
  std::vector<std::string> key;  ///< values of Summary::group_columns
  std::vector<Moments> moments;  ///< one per Summary::metrics
  Index count = 0;               ///< rows that entered the means: those that are ok
  Index degenerate = 0;          ///< rows left out
  Index infeasible = 0;          ///< rows left out
  Index failed = 0;              ///< rows left out
  double ratio = 0.0;            ///< mean of the column `ratio`, NaN where count is 0
};

struct Summary {
  std::vector<std::string> group_columns;  ///< algorithm, params, budget_requested, then `by`
  std::vector<std::string> metrics;
  std::vector<SummaryGroup> groups;
  /// Settings (protocol, sink, device, ...) that differ between the rows of some group; never
  /// without SummaryOptions::pool.
  std::vector<std::string> pooled;
  /// Of kSpreadColumns those that differ between the rows of some group, in plain words.
  std::vector<std::string_view> spread;
  /// Rows left out of all groups: by `infeasible`, `failed`, or `degenerate: reason`.
  std::map<std::string, Index> left_out;
};

/// All tables as one. Memory: the groups, and 8 bytes a row (a list that grows: 16). Throws what
/// opening and reading a table throw, and InputError: a missing column, no rows at all or none that
/// `where` keeps, differing schema versions, a schema of another major version, a metric that is no
/// number (file, row, column), an unknown status or sort column, a row that stands twice (files,
/// lines, key), rows of one mean that differ in a setting (columns, values, remedy).
Summary summarize(std::span<const ResultTable> tables, const SummaryOptions& options);

}  // namespace kvbench
