// Tables beside OUT.csv. A line starts with columns of the main table under their own names, by
// which the two join. In tables with several lines for each row then comes a number that tells
// these apart, `step` (the position of a query) or `first` (of a bin); one with a line for many
// rows has no steps. Then come the table's own columns, and behind them some of the main table
// again.
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"

namespace kvbench {

/// One kind of side table.
class SideTable {
 public:
  /// `name`: the file is OUT.<name>.csv. `joined`: columns of the main table, in its order. `own`:
  /// the table's own, at least one; a table with several lines for each row has `step` or `first`
  /// first. `behind`: columns of the main table that join nothing.
  SideTable(std::string_view name, std::span<const std::string_view> joined,
            std::vector<ColumnDoc> own, std::span<const std::string_view> behind = {});

  const std::string& name() const { return name_; }
  const Fields& header() const { return header_; }
  const std::vector<ColumnDoc>& own() const { return own_; }
  std::size_t joined() const { return joined_.size(); }  ///< columns that join
  /// Whether each row has lines of its own, or the rows of a KV head's query heads share theirs.
  bool per_query_head() const { return per_query_head_; }
  /// Whether a line has a step; else there is one line of a key.
  bool steps() const { return own_.front().name == "step" || own_.front().name == "first"; }

  /// OUT.<name>.csv for OUT.csv (and for OUT).
  std::filesystem::path path(const std::filesystem::path& csv) const;

  /// A line; `row`: all columns of its row in the main table (to_fields); `own`: a value for each
  /// of the table's own columns.
  template <class... Values>
  Fields line(std::span<const std::string> row, const Values&... own) const {
    return line_of(row, {field_text(own)...});
  }

  Fields line_of(std::span<const std::string> row, const Fields& own) const;

  /// What joins: equal for a line and for the rows that it belongs to, different for all others.
  std::string key(std::span<const std::string> line) const;
  std::string key_of_row(std::span<const std::string> row) const;

  /// Column `step` or `first`, 0 where lines have none. Throws InputError where that is no number.
  Index step(std::span<const std::string> line) const;

 private:
  void check_width(std::span<const std::string> line) const;

  std::string name_;
  Fields header_;
  bool per_query_head_ = false;
  std::vector<ColumnDoc> own_;
  std::vector<std::size_t> joined_;  // the main table's columns that come first
  std::vector<std::size_t> behind_;  // and last
};

/// Whether a row of this status has lines in side tables: those of measured rows do.
bool has_lines(std::string_view status);

/// OUT.steps.csv, of a stream: a line per evaluated step of each row. Key columns, then step,
/// rel_error, bytes.
const SideTable& steps_table();

/// OUT.kept.csv: which tokens an algorithm kept, a line per recorded step of each KV head and
/// algorithm. The columns that say which KV head, algorithm and setting, then step, tokens, and
/// what the line is of: it is read without its row.
const SideTable& kept_table();

/// OUT.queries.csv, of prefill: a line for each of query_bins() of each row. Those key columns that
/// differ between rows of one run, then first, last, queries, and the bin's errors.
const SideTable& queries_table();

/// The same file of `--per-query=all`: a line per evaluated query of each row. Schema and key
/// columns, then step (the query's position), offset, rel_error.
const SideTable& every_query_table();

/// OUT.layers.csv: a line for each layer and what was run on it, with the error of what all heads
/// of the layer together add to the residual stream. Schema and key columns without q_head, then
/// out_rel_error and residual_rel_error (empty where the trace has no norms).
const SideTable& layers_table();

/// Every table that may stand beside OUT.csv, OUT.queries.csv in its usual form.
inline std::array<const SideTable*, 4> all_side_tables() {
  return {&steps_table(), &kept_table(), &queries_table(), &layers_table()};
}

/// Ascending positions as ranges with both ends included: `0-255 300 305-310`; "" of none.
std::string ranges_text(std::span<const Index> tokens);

/// The reverse, of positions below n. Throws InputError (what stands there, what was expected) for
/// anything that ranges_text does not write, but for ranges that touch.
std::vector<Index> parse_ranges(std::string_view text, Index n);

}  // namespace kvbench
