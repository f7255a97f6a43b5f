// Enums of the command line.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"

namespace kvbench {

/// Returns the one of `values` (at least two) whose name() is `word`. Throws InputError.
template <class Enum, std::size_t N>
Enum parse_enum(std::string_view option, std::string_view word, const Enum (&values)[N]) {
  std::string expected;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < N; ++i) {
    if (name(values[i]) == word) {
      return values[i];
    }
    names.emplace_back(name(values[i]));
    expected += fmt::format("{}{}", i == 0 ? "" : i + 1 == N ? " or " : ", ", name(values[i]));
  }
  throw InputError(fmt::format("{}: got '{}'{}, expected {}", option, word,
                               did_you_mean(word, names), expected));
}

}  // namespace kvbench
