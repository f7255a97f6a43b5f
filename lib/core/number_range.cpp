#include "core/number_range.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>

#include "core/error.hpp"
#include "core/parse_number.hpp"

namespace kvbench {
namespace {

constexpr double kNear = 1e-9;  // of a step: rounding error of a step that ends on B

// The whole text must match.
template <class T>
bool read(std::string_view text, T& out) {
  if constexpr (std::floating_point<T>) {
    return parse_number(text, out) && std::isfinite(out);
  } else {
    return parse_decimal(text, out) && text[0] != '-';
  }
}

// Size of a range that may be empty; a double, as it may exceed 64 bits.
template <class T>
double count(const NumberRange<T>& range) {
  if constexpr (std::floating_point<T>) {
    return std::ceil((range.end - range.begin) / range.step - kNear);
  } else {
    return std::ceil(static_cast<double>(range.end - range.begin) /
                     static_cast<double>(range.step));
  }
}

}  // namespace

template <class T>
std::uint64_t NumberRange<T>::size() const {
  if constexpr (std::floating_point<T>) {
    return static_cast<std::uint64_t>(count(*this));
  } else {
    return static_cast<std::uint64_t>((end - begin - 1) / step + 1);
  }
}

bool is_range(std::string_view text) {
  return text.find(':') != std::string_view::npos;
}

template <class T>
NumberRange<T> parse_range(std::string_view where, std::string_view text, std::uint64_t most) {
  const auto reject = [&](std::string_view what) {
    throw InputError(fmt::format("{}: got '{}', {}", where, text, what));
  };
  NumberRange<T> out;
  std::array<T*, 3> parts{&out.begin, &out.end, &out.step};
  std::size_t at = 0;
  std::size_t got = 0;
  while (at <= text.size()) {
    const std::size_t colon = std::min(text.find(':', at), text.size());
    if (got == parts.size() || !read(text.substr(at, colon - at), *parts[got])) {
      got = 0;
      break;
    }
    ++got;
    at = colon + 1;
  }
  if (got < 2 || !(out.step > 0)) {
    reject(fmt::format(
        "expected A:B or A:B:STEP of {} with STEP above 0",
        std::floating_point<T> ? "numbers" : "integers of at least 0 without leading zeros"));
  }
  if (!(out.begin < out.end) || !(count(out) >= 1.0)) {
    reject("which is empty (ranges exclude their end), expected A:B with A < B");
  }
  if (!(count(out) <= static_cast<double>(most))) {
    reject(fmt::format("which has {:.0f} values, expected at most {}", count(out), most));
  }
  return out;
}

template struct NumberRange<Index>;
template struct NumberRange<std::uint64_t>;
template struct NumberRange<double>;
template NumberRange<Index> parse_range(std::string_view, std::string_view, std::uint64_t);
template NumberRange<std::uint64_t> parse_range(std::string_view, std::string_view, std::uint64_t);
template NumberRange<double> parse_range(std::string_view, std::string_view, std::uint64_t);

}  // namespace kvbench
