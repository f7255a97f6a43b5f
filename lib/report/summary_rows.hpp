// Rows as a summary reads them: those of one result table that are wanted.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "report/row_filter.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// Columns that a table of schema 1.3 or before lacks: its cells of these are empty, which is to
/// say unknown.
inline constexpr std::array<std::string_view, 3> kLaterColumns{"model", "dtype", "precision"};

/// Opens a table; it is read twice, or more often.
using ResultTable = std::function<std::unique_ptr<TableReader>()>;

/// OUT.csv. Errors, when it is opened: as of open_result_table.
ResultTable result_table(const std::filesystem::path& csv);

class SummaryRows {
 public:
  /// The rows that all filters keep. Throws what opening the table throws, and InputError for a
  /// filter's column that is absent.
  SummaryRows(const ResultTable& table, std::vector<RowFilter>& filters);

  /// Goes to the next of them. Errors: as of TableReader::next.
  bool next();

  /// Position of a column. Throws InputError, which names those that there are.
  std::size_t column(std::string_view name) const;
  const std::string& cell(std::size_t column) const;

  const std::string& source() const { return table_->source(); }
  std::size_t line() const { return table_->row_line(); }  ///< of the row
  Index row() const { return table_->rows(); }             ///< its number, 1-based

 private:
  std::unique_ptr<TableReader> table_;
  std::vector<RowFilter>& filters_;
  std::vector<std::size_t> filter_at_;
  std::string unknown_;  // the cell of a column that the table lacks
};

}  // namespace kvbench
