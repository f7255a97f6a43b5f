// Ranges as text: A:B and A:B:STEP, half-open as in Python and numpy.arange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/types.hpp"

namespace kvbench {

/// The numbers A, A + STEP, A + 2 STEP, ... below B; at least one. A real within 1e-9 of a step of
/// B counts as B and is excluded. `T`: Index, std::uint64_t or double.
template <class T>
struct NumberRange {
  T begin = 0;
  T end = 0;
  T step = 1;

  std::uint64_t size() const;
  T operator[](std::uint64_t i) const { return begin + static_cast<T>(i) * step; }
};

/// Whether the text is a range: it has a colon.
bool is_range(std::string_view text);

/// Reads a range of at most `most` numbers. Integers are >= 0, decimal digits only. Throws
/// InputError "WHERE: got 'TEXT', ..." for other texts, empty ranges (A >= B), STEP <= 0 and too
/// many numbers.
template <class T>
NumberRange<T> parse_range(std::string_view where, std::string_view text, std::uint64_t most);

}  // namespace kvbench
