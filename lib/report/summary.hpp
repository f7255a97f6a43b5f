// Reduces result rows to mean, standard deviation and count per group.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "report/row_filter.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// Every summary groups by these.
inline constexpr std::array<std::string_view, 3> kGroupColumns{"algorithm", "params",
                                                               "budget_requested"};

struct SummaryOptions {
  /// Numeric columns to reduce.
  std::vector<std::string> metrics{"rel_error", "ratio",       "middle_ratio",
                                   "mass_kept", "log_z_error", "compress_ms"};
  std::vector<std::string> by;   ///< columns to group by besides kGroupColumns
  std::vector<RowFilter> where;  ///< a row counts if all of these keep it
  bool pool = false;  ///< accept means over rows that differ in a setting (model, sink, ...)
  std::string sort;   ///< metric or group column, ascending, NaN last; empty: first appearance
  bool descending = false;
};

/// Mean and standard deviation (n - 1) of a metric in a group. NaN in the data gives NaN. An
/// infinite value gives an infinite mean and a NaN sd, one value a NaN sd, none NaN for both. The
/// mean of a share of bytes (ratio, middle_ratio, read_ratio) is a sum of bytes over a sum of
/// bytes.
struct Moments {
  double mean;
  double sd;
};

struct SummaryGroup {
  std::vector<std::string> key;  ///< values of Summary::group_columns
  std::vector<Moments> moments;  ///< one per Summary::metrics
  Index count = 0;               ///< rows with status ok, which enter the means
  Index degenerate = 0;          ///< rows skipped
  Index infeasible = 0;          ///< rows skipped
  Index failed = 0;              ///< rows skipped
};

struct Summary {
  std::vector<std::string> group_columns;  ///< kGroupColumns, then `by`
  std::vector<std::string> metrics;
  std::vector<SummaryGroup> groups;
  std::vector<std::string> pooled;       ///< settings that differ within a group
  std::vector<std::string_view> spread;  ///< what else differs within a group: "traces", "seeds"
  std::map<std::string, Index> skipped;  ///< rows by `infeasible`, `failed`, `degenerate: reason`
};

/// Opens a table, which is read twice or more.
using ResultTable = std::function<std::unique_ptr<TableReader>()>;

/// OUT.csv. Errors on opening: as of open_result_table.
ResultTable result_table(const std::filesystem::path& csv);

/// Reduces all tables as one. Memory: the groups, the heads, and 8 bytes a row (16 while the list
/// grows). Throws what reading a table throws, and InputError for: a missing column, no rows or
/// none that `where` keeps, mixed schema versions, another major version, a metric that is no
/// number, an unknown status or sort column, a duplicate row, and without `pool` rows of one mean
/// that differ in a setting.
Summary summarize(std::span<const ResultTable> tables, const SummaryOptions& options);

}  // namespace kvbench
