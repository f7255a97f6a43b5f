// Nearest rows at float32's speed, decided in float64. The nearest row decides what a method keeps,
// so it is decided by float64 numbers in a fixed order (kcenter.hpp, inner_products.hpp). float32
// numbers rule most rows out beyond rounding, and only the others are computed in float64. The
// result equals that of float64 for all rows, to the bit.
//
// u = 2^-24 is float32's unit roundoff. A chain of FMAs over d products of rounded numbers is off
// by less than (d + 3) u times the sum of the products' absolute values, unless it overflows or
// underflows.
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "core/types.hpp"

namespace kvbench {

/// Absolute error of d products that underflow in float32, with a margin.
inline double vanishing(Index d) {
  return 2.0 * static_cast<double>(d) * static_cast<double>(std::numeric_limits<float>::min());
}

/// (d + extra) u, with a margin for the bound's own rounding; relative to the sum of absolute
/// values.
inline double rounding_of_float32(Index d, Index extra) {
  return 1.01 * static_cast<double>(d + extra) * 0x1p-24;
}

/// A float32 number >= `x`, x >= 0.
inline float round_up(double x) {
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

/// float32 squared distances of d channels above this are at least `squared`, a float32 or float64
/// squared distance. All terms are positive, so float32's is off by less than d + 10 roundings of
/// itself in any order of summation.
inline float farther_above(double squared, Index d) {
  return round_up(squared * (1.0 + 3.0 * rounding_of_float32(d, 10)) + vanishing(d));
}

/// Numbers below this cannot be the largest if each is off by at most `error` and `largest` is the
/// largest of them. NaN, which rules nothing out, if a sum of terms as large as `size` may have
/// overflowed.
inline float ruled_out_below(float largest, double error, double size) {
  if (!std::isfinite(largest) || !(size < 0x1p126)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return std::nextafter(static_cast<float>(static_cast<double>(largest) - 2.0 * error),
                        -std::numeric_limits<float>::infinity());
}

/// The largest of `x`; NaN counts as the smallest. -inf of none.
inline float largest_of(std::span<const float> x) {
  float out = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : out)
  for (std::size_t i = 0; i < x.size(); ++i) {
    out = x[i] > out ? x[i] : out;
  }
  return out;
}

/// Calls visit(i), i ascending, for each x[i] >= bound, and for each x[i] if x[i] or bound is NaN.
template <class Visit>
void visit_at_least(std::span<const float> x, float bound, const Visit& visit) {
  constexpr std::size_t kSide = 32;  // checked together; mostly none is left
  for (std::size_t b = 0; b < x.size(); b += kSide) {
    const std::size_t count = x.size() - b < kSide ? x.size() - b : kSide;
    int left = 0;
#pragma omp simd reduction(+ : left)
    for (std::size_t i = 0; i < count; ++i) {
      left += !(x[b + i] < bound) ? 1 : 0;
    }
    for (std::size_t i = 0; left > 0 && i < count; ++i) {
      if (!(x[b + i] < bound)) {
        visit(b + i);
      }
    }
  }
}

}  // namespace kvbench
