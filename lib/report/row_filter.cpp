#include "report/row_filter.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

std::optional<double> parsed_number(std::string_view text) {
  double value = 0.0;
  return parse_number(text, value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string full_column_name(std::string_view name) {
  return std::string(name == "budget" ? "budget_requested" : name);
}

RowFilter::RowFilter(std::string text) : text_(std::move(text)) {
  const std::size_t equals = text_.find('=');
  negated_ = equals != std::string::npos && equals > 0 && text_[equals - 1] == '!';
  const std::size_t end = negated_ ? equals - 1 : equals;
  if (equals == std::string::npos || end == 0) {
    throw InputError(fmt::format("--where: got `{}`, expected COLUMN=VALUE[,VALUE...]", text_));
  }
  column_ = full_column_name(std::string_view(text_).substr(0, end));
  const auto known = std::ranges::find(columns(), std::string_view(column_), &Column::name);
  number_ = known != columns().end() && known->number;
  for (std::size_t at = equals; at != std::string::npos;) {
    const std::size_t comma = text_.find(',', at + 1);
    Value value{text_.substr(at + 1, comma - at - 1)};
    if (number_ && !value.text.empty()) {
      const std::size_t colon = value.text.find(':');
      const bool range = colon != std::string::npos;
      value.first = parsed_number(std::string_view(value.text).substr(0, colon));
      value.end =
          range ? parsed_number(std::string_view(value.text).substr(colon + 1)) : std::nullopt;
      if (!value.first || (range && !(value.end && *value.first < *value.end))) {
        throw InputError(
            fmt::format("--where {}: got `{}`, expected a number or a range A:B (from A to below "
                        "B)",
                        text_, value.text));
      }
    }
    values_.push_back(std::move(value));
    at = comma;
  }
}

bool RowFilter::matches(const Value& value, std::string_view cell) const {
  if (!value.first) {
    return ::fnmatch(value.text.c_str(), std::string(cell).c_str(), FNM_NOESCAPE) == 0;
  }
  const std::optional<double> number = parsed_number(cell);
  return number &&
         (value.end ? *value.first <= *number && *number < *value.end : *number == *value.first);
}

bool RowFilter::keeps(std::string_view cell) {
  bool any = false;
  for (Value& value : values_) {
    if (matches(value, cell)) {
      value.met = any = true;
    }
  }
  return any != negated_;
}

void RowFilter::check_met() const {
  const auto absent = std::ranges::find(values_, false, &Value::met);
  if (!negated_ && absent != values_.end()) {
    throw InputError(fmt::format("--where {}: no row has {} {}", text_, column_, absent->text));
  }
}

}  // namespace kvbench
