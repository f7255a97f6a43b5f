// Rows that stand twice, in one table or in two: they would count twice in a mean.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "report/row_filter.hpp"
#include "report/summary_rows.hpp"

namespace kvbench {

/// The key of rows, from the columns that docs/schema.md calls key, wherever they stand.
class RowKey {
 public:
  /// Throws InputError where one of them is missing.
  explicit RowKey(const SummaryRows& rows);
  std::string of(const SummaryRows& rows) const;
  /// The same for people: `trace=a.h5, prompt=p0, ...`.
  std::string text(const SummaryRows& rows) const;

 private:
  std::vector<std::size_t> at_;
};

/// Throws InputError (both files and lines, the key) where two rows have one key. `hashes`: of all
/// rows' keys, in any order. Reads the tables again where hashes are equal, with a bounded number
/// of keys in memory.
void check_repeats(std::span<const ResultTable> tables, std::vector<RowFilter>& filters,
                   std::vector<std::uint64_t> hashes);

}  // namespace kvbench
