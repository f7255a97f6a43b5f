// Integers of the command line and of configuration files: decimal digits alone. (CLI11 reads 010
// as 8, 0x10 as 16, and what overflows as the largest number.)
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <system_error>

namespace kvbench {

/// Refuses what is no decimal integer that a T holds: a leading zero or plus, a base, a fraction,
/// an overflow. For every option that CLI11 turns into an integer.
template <class T>
CLI::Validator decimal() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        T value = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const std::string digits = text.substr(text.starts_with('-') ? 1 : 0);
        if (stop == end && error == std::errc::result_out_of_range) {
          return fmt::format("got '{}', expected an integer of at most {} bits", text,
                             8 * sizeof(T));
        }
        if (stop != end || error != std::errc() || (digits.size() > 1 && digits[0] == '0')) {
          return fmt::format("got '{}', expected a decimal integer without leading zeros", text);
        }
        return "";
      },
      "");
}

}  // namespace kvbench
