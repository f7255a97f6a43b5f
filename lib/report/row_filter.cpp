#include "report/row_filter.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

std::optional<double> parsed_number(std::string_view text) {
  double value = 0.0;
  return parse_number(text, value) ? std::optional(value) : std::nullopt;
}

// The parts between commas; an escaped comma does not split.
std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> out(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      out.emplace_back();
      continue;
    }
    out.back() += text[i];
    if (text[i] == '\\' && i + 1 < text.size()) {
      out.back() += text[++i];
    }
  }
  return out;
}

// Without the backslashes of `\,` and `\=`.
std::string plain(std::string_view value) {
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool escaped =
        value[i] == '\\' && i + 1 < value.size() && (value[i + 1] == ',' || value[i + 1] == '=');
    out += value[escaped ? ++i : i];
  }
  return out;
}

// The column of a part that begins with COLUMN= or COLUMN!=; otherwise "".
std::string_view column_of(std::string_view part) {
  std::string_view name = part.substr(0, std::min(part.find('='), part.size()));
  if (name.size() == part.size()) {
    return "";
  }
  name.remove_suffix(name.ends_with('!') ? 1 : 0);
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  return name.find_first_not_of(kLetters) == std::string_view::npos ? name : "";
}

bool is_column(std::string_view name) {
  return std::ranges::find(columns(), full_column_name(name), &Column::name) != columns().end();
}

// Whether cells of the column contain equals signs.
bool has_equations(std::string_view column) {
  return column == "params" || column == "diag" || column == "status";
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
  for (const std::string& part : parts_of(std::string_view(text_).substr(equals + 1))) {
    Value value{plain(part)};
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
  }
}

bool RowFilter::matches(const Value& value, std::string_view cell) const {
  if (!value.first) {
    return ::fnmatch(value.text.c_str(), std::string(cell).c_str(), FNM_NOESCAPE) == 0;
  }
  const std::optional<double> number = parsed_number(cell);
  return number && (value.end                  ? *value.first <= *number && *number < *value.end
                    : std::isnan(*value.first) ? std::isnan(*number)
                                               : *number == *value.first);
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

std::vector<RowFilter> row_filters(const std::string& text) {
  std::vector<std::string> conditions;
  std::string_view column;  // of the last condition
  for (const std::string& part : parts_of(text)) {
    const std::string_view name = column_of(part);
    if (conditions.empty() || (!name.empty() && (!has_equations(column) || is_column(name)))) {
      conditions.push_back(part);
      column = name;
    } else {
      conditions.back() += "," + part;
    }
  }
  return {conditions.begin(), conditions.end()};
}

}  // namespace kvbench
