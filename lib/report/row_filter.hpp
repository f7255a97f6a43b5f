// Conditions on rows: COLUMN=VALUE,..., as in `kvbench summarize --where`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench {

/// Replaces the short name `budget` by `budget_requested`.
std::string full_column_name(std::string_view name);

/// COLUMN=VALUE[,VALUE...] keeps rows whose cell is one of the values, COLUMN!=VALUE[,VALUE...] the
/// others. A value of a text column is a shell pattern (`*`, `?`, `[...]`) for the whole cell, one
/// of a numeric column a number (also `nan`) or a range [A,B) written A:B. An empty value matches
/// an empty cell.
/// `\,` and `\=` are a comma and an equals sign of a value.
class RowFilter {
 public:
  /// Throws InputError for another form or a value that is no number of a numeric column.
  explicit RowFilter(std::string text);

  const std::string& text() const { return text_; }  ///< as parsed
  const std::string& column() const { return column_; }

  /// Whether a row with this cell is kept. Records which values matched.
  bool keeps(std::string_view cell);
  /// Throws InputError if some value matched no cell.
  void check_met() const;

 private:
  struct Value {
    std::string text;
    std::optional<double> first = {};  // of numbers
    std::optional<double> end = {};    // of ranges
    bool met = false;
  };

  bool matches(const Value& value, std::string_view cell) const;

  std::string text_;
  std::string column_;
  bool negated_ = false;
  bool number_ = false;
  std::vector<Value> values_;
};

/// Splits a text into conditions, which must all hold. After a comma comes another value, or the
/// next condition if it begins with COLUMN= or COLUMN!=. After a condition on `params`, `diag` or
/// `status`, whose cells contain `=`, COLUMN must be a column of the schema. Errors: as of
/// RowFilter.
std::vector<RowFilter> row_filters(const std::string& text);

}  // namespace kvbench
