// Ranges in texts: A:B and A:B:STEP, from A to below B, as in Python and numpy.arange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/types.hpp"

namespace kvbench {

/// The numbers A, A + STEP, A + 2 STEP, ... below B; at least one. A real one within 1e-9 of a step
/// of B is B, and left out. `T`: Index, std::uint64_t or double.
template <class T>
struct NumberRange {
  T begin = 0;
  T end = 0;
  T step = 1;

  std::uint64_t size() const;
  T operator[](std::uint64_t i) const { return begin + static_cast<T>(i) * step; }
  /// Whether B would be the next number.
  bool steps_on_end() const;
};

/// Whether a text is one: it has a colon.
bool is_range(std::string_view text);

/// Reads a range of at most `most` numbers. Integers are at least 0, of decimal digits alone.
/// Throws InputError "WHERE: got 'TEXT', ..." for another text, an empty range (A >= B), a STEP
/// that is not above 0 and too many numbers.
template <class T>
NumberRange<T> parse_range(std::string_view where, std::string_view text, std::uint64_t most);

}  // namespace kvbench
