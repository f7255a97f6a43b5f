#include "core/printable.hpp"

#include <cstddef>
#include <cstdint>

namespace kvbench {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

// RFC 3629: no overlong form, no surrogate.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1, true};
  }
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) {
    return {};
  }
  std::uint32_t code = lead & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) {
      return {};
    }
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return {code, bytes, !overlong && !surrogate && code <= 0x10ffff};
}

bool is_safe(std::uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool directs = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
                       (c >= 0x2066 && c <= 0x2069);
  return !control && !directs;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = first_of(text);
    const std::size_t bytes = c.valid ? c.bytes : 1;
    if (c.valid && is_safe(c.code)) {
      out += text.substr(0, bytes);
    } else {
      out += '?';
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace kvbench
