// Rows as a summary reads them: those of one result table that are wanted, with what its manifest
// says of their traces as columns behind the table's own.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "report/row_filter.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// Columns that come from the manifest; empty where there is none, or where it does not say.
inline constexpr std::array<std::string_view, 3> kManifestColumns{"model", "dtype", "precision"};

/// What a manifest says of a table's rows, by the column `trace`: values of kManifestColumns.
using Origins = std::map<std::string, std::array<std::string, kManifestColumns.size()>>;

/// Opens a table; it is read twice, or more often.
struct ResultTable {
  std::function<std::unique_ptr<TableReader>()> open;
  Origins origins = {};
};

/// OUT.csv with what its manifest says, where it has one. Errors: as of open_result_table; here or
/// when it is opened.
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
  const Origins& origins_;
  std::unique_ptr<TableReader> table_;
  std::vector<RowFilter>& filters_;
  std::vector<std::size_t> filter_at_;
  std::size_t trace_at_ = 0;
  std::array<std::string, kManifestColumns.size()> nothing_;
};

}  // namespace kvbench
