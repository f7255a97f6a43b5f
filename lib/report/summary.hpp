// Reduces result rows to mean, standard deviation and count per group. Computes nothing else.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_guard.hpp"
#include "core/types.hpp"
#include "report/csv.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// Every summary groups by these.
inline constexpr std::array<std::string_view, 3> kGroupColumns{"algorithm", "params",
                                                               "budget_requested"};

struct SummaryOptions {
  /// Columns to reduce; numeric.
  std::vector<std::string> metrics{"rel_error", "ratio",       "middle_ratio",
                                   "mass_kept", "log_z_error", "compress_ms"};
  /// Columns to group by, besides algorithm, params and budget_requested.
  std::vector<std::string> by;
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
};

struct Summary {
  std::vector<std::string> group_columns;  ///< algorithm, params, budget_requested, then `by`
  std::vector<std::string> metrics;
  std::vector<SummaryGroup> groups;
  /// Settings (protocol, sink, device, ...) that differ between the rows of some group: the means
  /// pool what may not belong together.
  std::vector<std::string> pooled;
  /// Rows left out of all groups: by `infeasible`, `failed`, or `degenerate: reason`.
  std::map<std::string, Index> left_out;
};

/// Opens a table; rows are read twice.
using OpenTable = std::function<std::unique_ptr<TableReader>()>;

/// All tables as one; memory grows with the groups alone. Throws what opening and reading a table
/// throw, and InputError: a missing column, no rows at all, differing schema
/// versions, a schema of another major version, a metric that is no number (file, row, column), an
/// unknown status or sort column.
Summary summarize(std::span<const OpenTable> tables, const SummaryOptions& options);

/// Aligned columns with units. `full_params` prints params as they are; otherwise an algorithm
/// shows only the parameters that differ between its groups.
std::string summary_text(const Summary& summary, bool full_params);

/// The same as a CSV: group columns, count, degenerate, infeasible, failed, then mean_X and sd_X
/// per metric X, numbers in full precision. First element is the header.
std::vector<Fields> summary_csv(const Summary& summary);

/// Files that summary_csv() makes, whatever the columns of `by` and metrics.
FileKind summary_kind();

/// Labels like `balancekv T=2`: per group the algorithm and those of its parameters whose value
/// differs between the groups of that algorithm.
std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params);

}  // namespace kvbench
