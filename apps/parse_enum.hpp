// Options of the command line that are parsed from a text.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"

namespace kvbench {

template <class Enum>
std::vector<std::string> names_of(const std::vector<Enum>& values) {
  std::vector<std::string> out;
  for (const Enum value : values) {
    out.emplace_back(name(value));
  }
  return out;
}

/// Returns the one of `values` (at least two) whose name() is `word`. Throws InputError.
template <class Enum>
Enum parse_enum(std::string_view option, std::string_view word, const std::vector<Enum>& values) {
  const std::vector<std::string> names = names_of(values);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) {
      return values[i];
    }
  }
  throw InputError(fmt::format("{}: got '{}'{}, expected {} or {}", option, word,
                               did_you_mean(word, names),
                               fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
}

/// `read` for an option: apply_config adds file and line to a CLI::ValidationError.
template <class Read>
auto option_reader(const Read& read) {
  return [read](const auto& texts) {
    try {
      read(texts);
    } catch (const InputError& e) {
      throw CLI::ValidationError(e.what());
    }
  };
}

/// An option whose text is passed to `read`, which may throw InputError.
template <class Read>
CLI::Option* text_option(CLI::App& app, const char* flag, const Read& read, const std::string& help,
                         const std::string& type_name) {
  return app.add_option_function<std::string>(flag, option_reader(read), help)
      ->type_name(type_name);
}

/// An option that takes the name() of one of `values`.
template <class Enum>
CLI::Option* enum_option(CLI::App& app, const char* flag, Enum& value,
                         const std::vector<Enum>& values, const std::string& help) {
  const auto read = [flag, &value, values](const std::string& word) {
    value = parse_enum(flag, word, values);
  };
  return text_option(app, flag, read, help, fmt::format("{}", fmt::join(names_of(values), "|")))
      ->default_str(std::string(name(value)));
}

}  // namespace kvbench
