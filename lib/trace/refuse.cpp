#include "trace/refuse.hpp"

#include <algorithm>
#include <cstddef>

namespace kvbench::h5 {

std::string one_line(std::string_view text) {
  constexpr std::size_t kMaxLength = 1000;
  std::string line(text.substr(0, kMaxLength));
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return line;
}

Place Place::operator/(std::string_view member) const {
  return {file, fmt::format("{}{}{}", path, path.ends_with('/') ? "" : "/", member)};
}

}  // namespace kvbench::h5
