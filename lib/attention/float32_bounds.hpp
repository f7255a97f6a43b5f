// Nearest rows at the rate of float32, decided in float64. Which row is nearest decides what a
// method keeps, so it is decided by float64 numbers of a fixed order (kcenter.hpp,
// inner_products.hpp). Nearly all rows are far from winning: their float32 numbers say so beyond
// rounding, and only the few that are left are computed in float64. The outcome is that of float64
// for all rows, to the bit, whatever float32 does.
//
// u = 2^-24 is float32's unit roundoff. A chain of FMAs over d products of rounded numbers is off
// by less than (d + 3) u times the sum of the products' sizes, where nothing overflows or vanishes.
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "core/types.hpp"

namespace kvbench {

/// What may be lost to products that vanish below float32's smallest normal number, beside any
/// relative bound. d of them, with room.
inline double vanishing(Index d) {
  return 2.0 * static_cast<double>(d) * static_cast<double>(std::numeric_limits<float>::min());
}

/// (d + extra) u with room for the bound's own rounding: of the sizes of what is summed.
inline double rounding_of_float32(Index d, Index extra) {
  return 1.01 * static_cast<double>(d + extra) * 0x1p-24;
}

/// A float32 number that is not below `x` >= 0.
inline float round_up(double x) {
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

/// Squared distances (sums of squared differences of d channels, in float32) above this are not
/// below `squared`, itself of float32 or float64. All terms are positive, so float32's is off by
/// less than d + 10 roundings of itself, however it is summed: differences, squares, chains, a
/// tree.
inline float farther_above(double squared, Index d) {
  return round_up(squared * (1.0 + 3.0 * rounding_of_float32(d, 10)) + vanishing(d));
}

/// Numbers below this are not the largest, if each is off by `error` at most and `largest` is the
/// largest of them. NaN, which rules nothing out, where a sum of parts as large as `size` may have
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

/// Calls visit(i), i ascending, for each x[i] that is not below `bound`: NaN is not.
template <class Visit>
void visit_not_below(std::span<const float> x, float bound, const Visit& visit) {
  constexpr std::size_t kSide = 32;  // side by side; mostly none of them is left
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
