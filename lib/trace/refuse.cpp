#include "trace/refuse.hpp"

#include <cstddef>

#include "core/printable.hpp"

namespace kvbench::h5 {

std::string one_line(std::string_view text) {
  constexpr std::size_t kMaxLength = 1000;
  return printable(text.substr(0, kMaxLength));
}

Place Place::operator/(std::string_view member) const {
  return {file, fmt::format("{}{}{}", path, path.ends_with('/') ? "" : "/", member)};
}

}  // namespace kvbench::h5
