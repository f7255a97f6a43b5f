#include "trace/schema.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/parse_number.hpp"

namespace kvbench {

namespace {

constexpr std::uint64_t kMaxLayer = 1000000;

// Length of the run of digits at the start of `text`, and the run without leading zeros.
std::pair<std::size_t, std::string_view> number_at(std::string_view text) {
  const std::string_view run = text.substr(0, text.find_first_not_of("0123456789"));
  return {run.size(), run.substr(std::min(run.find_first_not_of('0'), run.size()))};
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
  std::uint64_t value = 0;
  return parse_decimal(text, value) && value <= kMaxLayer ? std::optional<Index>(value)
                                                          : std::nullopt;
}

bool natural_less(std::string_view a, std::string_view b) {
  std::string_view x = a;
  std::string_view y = b;
  while (!x.empty() && !y.empty()) {
    const auto [run_x, number_x] = number_at(x);
    const auto [run_y, number_y] = number_at(y);
    const bool runs = run_x > 0 && run_y > 0;
    if (runs && number_x != number_y) {
      return std::pair(number_x.size(), number_x) < std::pair(number_y.size(), number_y);
    }
    if (!runs && x.front() != y.front()) {
      return static_cast<unsigned char>(x.front()) < static_cast<unsigned char>(y.front());
    }
    x.remove_prefix(runs ? run_x : 1);
    y.remove_prefix(runs ? run_y : 1);
  }
  return x.empty() != y.empty() ? x.empty() : a < b;
}

}  // namespace kvbench
