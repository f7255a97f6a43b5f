// Numbers in texts.
#pragma once

#include <charconv>
#include <concepts>
#include <string_view>
#include <system_error>

namespace kvbench {

/// Parses a whole text as a number, as std::from_chars does: no plus sign, blanks or locale.
/// Returns false if it is none; then `value` is unspecified.
template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// The same of integers without leading zeros.
template <std::integral T>
bool parse_decimal(std::string_view text, T& value) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  return parse_number(text, value) && (digits.size() == 1 || digits[0] != '0');
}

}  // namespace kvbench
