// Tables beside OUT.csv. A line starts with columns of the main table under their own names, by
// which the two join. In tables with several lines for each row, such as OUT.steps.csv (a line per
// evaluated step of a stream) and OUT.kept.csv (a line per recorded kept set), then comes `step`,
// the position of a query; one with a line for many rows (OUT.layers.csv) has no steps. Then come
// the table's own columns.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// One kind of side table.
class SideTable {
 public:
  /// `name`: the file is OUT.<name>.csv. `joined`: columns of the main table, in its order.
  SideTable(std::string_view name, std::span<const std::string_view> joined,
            std::span<const std::string_view> own, bool steps = true);

  const std::string& name() const { return name_; }
  const Fields& header() const { return header_; }
  /// Whether each row has lines of its own, or the rows of a KV head's query heads share theirs.
  bool per_query_head() const { return per_query_head_; }
  /// Whether a line has a step; else there is one line of a key.
  bool steps() const { return steps_; }

  /// OUT.<name>.csv for OUT.csv (and for OUT).
  std::filesystem::path path(const std::filesystem::path& csv) const;

  /// A line; `row`: all columns of its row in the main table (to_fields); `own`: as many as named.
  /// `step` is ignored where lines have none.
  Fields line(std::span<const std::string> row, Index step, std::span<const std::string> own) const;

  /// What joins: equal for a line and for the rows that it belongs to, different for all others.
  std::string key(std::span<const std::string> line) const;
  std::string key_of_row(std::span<const std::string> row) const;

  /// Column `step`, 0 where lines have none. Throws InputError where that is no number.
  Index step(std::span<const std::string> line) const;

 private:
  void check_width(std::span<const std::string> line) const;

  std::string name_;
  Fields header_;
  bool per_query_head_ = false;
  bool steps_ = true;
  std::vector<std::size_t> joined_;  // the main table's columns that come first
};

/// Whether a row of this status has lines in side tables: those of measured rows do.
bool has_lines(std::string_view status);

}  // namespace kvbench
