#include "trace/schema.hpp"

#include <algorithm>
#include <cstddef>

namespace kvbench {

namespace {

constexpr Index kMaxLayer = 1000000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The run of digits of `text` that starts at `at`.
std::string_view digits_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) {
    ++end;
  }
  return text.substr(at, end - at);
}

std::string_view without_leading_zeros(std::string_view digits) {
  const std::size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  return digits.substr(first);
}

}  // namespace

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DType t : {DType::float16, DType::bfloat16, DType::float32}) {
    if (text == name(t)) {
      return t;
    }
  }
  return std::nullopt;
}

std::optional<Index> parse_layer_name(std::string_view text) {
  if (text.empty() || text.size() > 7 || (text.size() > 1 && text[0] == '0')) {
    return std::nullopt;
  }
  Index value = 0;
  for (const char c : text) {
    if (!is_digit(c)) {
      return std::nullopt;
    }
    value = value * 10 + (c - '0');
  }
  return value <= kMaxLayer ? std::optional<Index>(value) : std::nullopt;
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view run_a = digits_at(a, i);
      const std::string_view run_b = digits_at(b, j);
      const std::string_view number_a = without_leading_zeros(run_a);
      const std::string_view number_b = without_leading_zeros(run_b);
      if (number_a.size() != number_b.size()) {
        return number_a.size() < number_b.size();
      }
      if (number_a != number_b) {
        return number_a < number_b;
      }
      i += run_a.size();
      j += run_b.size();
    } else if (a[i] != b[j]) {
      return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    } else {
      ++i;
      ++j;
    }
  }
  if ((i < a.size()) != (j < b.size())) {
    return j < b.size();
  }
  return a < b;
}

}  // namespace kvbench
