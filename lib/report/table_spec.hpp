// The declarations of OUT.csv and of the tables beside it. A line of a side table starts with
// columns of OUT.csv, which join the two. A table with several lines per row then has `step` (the
// position of a query) or `first` (of a bin). Its other own columns follow, and last run_id,
// row_crc and some more columns of OUT.csv, which do not join.
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

/// The columns of one kind of table.
class TableSpec {
 public:
  /// OUT.csv: all columns of the schema.
  TableSpec();
  /// OUT.<name>.csv. `joined`: columns of OUT.csv, in its order. `own`: the table's own, at least
  /// one. `last`: columns of OUT.csv that follow run_id and row_crc.
  TableSpec(std::string_view name, std::span<const std::string_view> joined,
            std::vector<ColumnDoc> own, std::span<const std::string_view> last = {});

  const std::string& name() const { return name_; }  ///< also in the manifest's `sha256`
  const Fields& header() const { return header_; }
  const std::vector<ColumnDoc>& own() const { return own_; }
  bool is_side() const { return !own_.empty(); }
  std::size_t joined() const { return joined_.size(); }  ///< leading columns of OUT.csv
  std::size_t run_at() const { return run_at_; }         ///< position of run_id
  /// Whether each query head has lines of its own; otherwise those of a KV head share theirs.
  bool per_query_head() const { return per_query_head_; }
  /// Whether a key has a line per step; otherwise it has one line.
  bool steps() const {
    return is_side() && (own_.front().name == "step" || own_.front().name == "first");
  }

  /// The table's file for OUT.csv (or OUT): OUT.<name>.csv of a side table.
  std::filesystem::path path(const std::filesystem::path& csv) const;

  /// A line. `row`: all columns of its row in OUT.csv (to_fields). `own`: a value per own column.
  template <class... Values>
  Fields line(std::span<const std::string> row, const Values&... own) const {
    return line_of(row, {field_text(own)...});
  }
  Fields line_of(std::span<const std::string> row, const Fields& own) const;

  /// The identity of a line; a side table's equals that of its rows. Throws InputError for another
  /// width.
  std::string key(std::span<const std::string> line) const;
  std::string key_of_row(std::span<const std::string> row) const { return key_of(row, row_key_); }

 private:
  void check_width(std::span<const std::string> line) const;

  std::string name_;
  Fields header_;
  bool per_query_head_ = false;
  std::vector<ColumnDoc> own_;
  std::size_t run_at_ = 0;
  std::vector<std::size_t> joined_;    // positions in OUT.csv
  std::vector<std::size_t> last_;      // the same
  std::vector<std::size_t> row_key_;   // what identifies a line: positions in OUT.csv
  std::vector<std::size_t> line_key_;  // and in the line
};

/// OUT.csv.
const TableSpec& main_table();

/// Whether a row of this status has lines in side tables: it was measured.
bool has_lines(std::string_view status);

/// OUT.steps.csv, of a stream: a line per evaluated step of each row.
const TableSpec& steps_table();

/// OUT.kept.csv: the tokens that an algorithm kept, a line per recorded step of each KV head and
/// algorithm. Readable without OUT.csv.
const TableSpec& kept_table();

/// OUT.queries.csv, of prefill: a line for each of query_bins() of each row.
const TableSpec& queries_table();

/// The same file under `--per-query=all`: a line per evaluated query of each row.
const TableSpec& every_query_table();

/// OUT.layers.csv: a line per layer and setting, with the error that all heads of the layer
/// together add to the residual stream.
const TableSpec& layers_table();

/// Every table that may exist beside OUT.csv, OUT.queries.csv as bins.
inline std::array<const TableSpec*, 4> all_side_tables() {
  return {&steps_table(), &kept_table(), &queries_table(), &layers_table()};
}

/// Ascending positions as ranges with both ends included: `0-255 300 305-310`; "" of none.
std::string ranges_text(std::span<const Index> tokens);

/// The reverse, of positions below n; ranges may touch. Throws InputError for other text.
std::vector<Index> parse_ranges(std::string_view text, Index n);

}  // namespace kvbench
