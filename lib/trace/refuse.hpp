// Internal to lib/trace: errors of one line, and the place in a file that they name.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/printable.hpp"

namespace kvbench::h5 {

/// `text` with control characters replaced, so that a message stays one line, and cut if long.
inline std::string one_line(std::string_view text) {
  constexpr std::size_t kMaxLength = 1000;
  return printable(text.substr(0, kMaxLength));
}

/// Throws an E with a message of one line.
template <class E, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> what, Args&&... args) {
  throw E(one_line(fmt::format(what, std::forward<Args>(args)...)));
}

/// A place in a file, which every error about its contents names.
struct Place {
  std::string file;
  std::string path;  ///< inside the file, "/" for the root

  Place operator/(std::string_view member) const {
    return {file, fmt::format("{}{}{}", path, path.ends_with('/') ? "" : "/", member)};
  }
  /// Throws InputError "FILE: PATH: WHAT", made one line.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    raise<InputError>("{}: {}: {}", file, path, fmt::format(what, std::forward<Args>(args)...));
  }
  /// The same unless `good`.
  template <class... Args>
  void expect(bool good, fmt::format_string<Args...> what, Args&&... args) const {
    if (!good) {
      refuse(what, std::forward<Args>(args)...);
    }
  }
};

}  // namespace kvbench::h5
