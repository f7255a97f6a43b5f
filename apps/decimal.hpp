// Integers of the command line and of configuration files: decimal digits alone; and the options
// that take them, or lists. (CLI11 reads 010
// as 8, 0x10 as 16, and what overflows as the largest number.)
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

namespace kvbench {

/// Accepts decimal integers that fit into a T; refuses a leading zero or plus, a base, a fraction
/// and an overflow. For every option that CLI11 turns into an integer.
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

/// An option that takes one decimal integer.
template <class T>
CLI::Option* number(CLI::App& app, const char* flag, T& value, const char* help,
                    const char* type_name) {
  return app.add_option(flag, value, help)
      ->capture_default_str()
      ->check(decimal<T>())
      ->type_name(type_name);
}

/// An option that takes one value, or one list with commas, per mention: what follows may be a
/// trace.
template <class T>
CLI::Option* list(CLI::App& app, const char* flag, std::vector<T>& values, const char* help,
                  const char* type_name) {
  CLI::Option* option = app.add_option(flag, values, help)->allow_extra_args(false);
  if constexpr (std::is_integral_v<T>) {
    option->check(decimal<T>());
  }
  return option->delimiter(',')->type_name(type_name);
}

}  // namespace kvbench
