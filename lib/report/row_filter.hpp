// Which rows of result tables count: COLUMN=VALUES,..., as `kvbench summarize --where` takes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench {

/// The column that stands for this name: `budget` is short for `budget_requested`.
std::string full_column_name(std::string_view name);

/// COLUMN=VALUE[,VALUE...] keeps rows whose cell is one of the values, COLUMN!=VALUE[,VALUE...] the
/// others. A value of a text column is a pattern of the shell (`*`, `?`, `[...]`) for the whole
/// cell; one of a column of numbers is a number or a range A:B, from A to below B. An empty
/// value is an empty cell. `\,` and `\=` stand for a comma and an equals sign of a value.
class RowFilter {
 public:
  /// Throws InputError for a text of another form, or a value that is none of the column's.
  explicit RowFilter(std::string text);

  const std::string& text() const { return text_; }  ///< as given
  const std::string& column() const { return column_; }

  /// Whether a row with this cell counts. Remembers which values were met.
  bool keeps(std::string_view cell);
  /// Throws InputError where no cell was ever one of the values: a slip of the pen.
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

/// The conditions of a text, which must all hold: what follows a comma is another value, or the
/// next condition where it begins with COLUMN= or COLUMN!=. After a condition on `params`, `diag`
/// or `status`, whose cells have such words, only a column of the tables begins one. Throws
/// InputError as RowFilter.
std::vector<RowFilter> row_filters(const std::string& text);

}  // namespace kvbench
