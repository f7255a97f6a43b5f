#include "trace/digest.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "trace/chunk_codec.hpp"

namespace kvbench::h5 {

namespace {

constexpr Index kPart = Index{1} << 14;  // elements; a copy of a head would be large

bool is_digest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

std::span<const std::string> digests_of(const Object& dataset, std::size_t parts) {
  const std::vector<std::string>* texts = optional_strings(dataset, kDigest);
  if (texts == nullptr) {
    return {};
  }
  if (texts->size() != parts) {
    dataset.where.refuse("attribute {} has {} texts, expected {}", kDigest, texts->size(), parts);
  }
  const auto bad = std::ranges::find_if_not(*texts, is_digest);
  if (bad != texts->end()) {
    dataset.where.refuse("attribute {} is \"{}\", expected 64 lower-case hexadecimal digits",
                         kDigest, *bad);
  }
  return *texts;
}

void ElementHash::add(const float* x, Index count) {
  for (Index done = 0; done < count; done += kPart) {
    const Bytes part = stored_elements(x + done, std::min(kPart, count - done), type_);
    hash_.add({reinterpret_cast<const char*>(part.data()), part.size()});
  }
}

void ElementHash::add_integers(std::span<const std::int64_t> x, std::size_t width) {
  for (const std::int64_t value : x) {
    // The machine is little-endian (chunk_codec.cpp), so the low bytes come first.
    hash_.add({reinterpret_cast<const char*>(&value), std::min(width, sizeof value)});
  }
}

void check_digest(const Place& where, const std::string& part, const std::string& expected,
                  ElementHash& got) {
  if (const std::string text = got.text(); text != expected) {
    where.refuse("{}its SHA-256 is {}, expected {} (attribute {}): the values were changed", part,
                 text, expected, kDigest);
  }
}

}  // namespace kvbench::h5
