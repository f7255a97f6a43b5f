// Numbers in texts.
#pragma once

#include <charconv>
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

}  // namespace kvbench
