// The rows of result tables that filters keep, and the check that no row occurs twice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/row_filter.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// Opens a table, which is read twice or more.
using ResultTable = std::function<std::unique_ptr<TableReader>()>;

/// OUT.csv. Errors on opening: as of open_result_table.
ResultTable result_table(const std::filesystem::path& csv);

class ResultRows {
 public:
  /// The rows that all filters keep. Throws what opening the table throws, and InputError for a
  /// missing column of a filter or of the key.
  ResultRows(const ResultTable& table, std::vector<RowFilter>& filters);

  /// Reads the next row. Errors: as of TableReader::next.
  bool next();

  /// Position of a column. Errors: as of column_position.
  std::size_t column(std::string_view name) const { return table_->column(name); }
  const std::string& cell(std::size_t column) const { return table_->row()[column]; }

  std::string key() const { return key_of(table_->row(), key_at_); }  ///< of the key columns
  std::string key_text() const;                                       ///< `trace=a.h5, prompt=...`

  const std::string& source() const { return table_->source(); }
  std::size_t line() const { return table_->row_line(); }  ///< of the row, 1-based
  Index row() const { return table_->rows(); }             ///< its number, 1-based

 private:
  std::unique_ptr<TableReader> table_;
  std::vector<RowFilter>& filters_;
  std::vector<std::size_t> filter_at_;
  std::vector<std::size_t> key_at_;
};

/// Throws InputError (both files and lines, the key) if two rows have one key. `hashes`: hash_of()
/// the keys of all rows, in any order. Rereads the tables only if hashes repeat, with a bounded
/// number of keys in memory.
void check_duplicates(std::span<const ResultTable> tables, std::vector<RowFilter>& filters,
                      std::vector<std::uint64_t> hashes);

}  // namespace kvbench
