// Quantisation by its definition: no packing, one number at a time, float16 by arithmetic.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

namespace reference {

/// `x` at the precision of IEEE half, ties to even, clamped to its finite range.
inline Real half(Real x) {
  if (x == 0) {
    return 0;
  }
  int e = 0;
  std::frexp(x, &e);  // |x| in [2^(e-1), 2^e): 11 bits of it, but no finer than 2^-24
  const Real unit = std::ldexp(Real{1}, std::max(e - 11, -24));
  return std::clamp<Real>(std::nearbyint(x / unit) * unit, -65504, 65504);
}

/// A group read back from `bits`-bit codes.
inline Vec quantized(const Vec& group, int bits) {
  const Real low = *std::min_element(group.begin(), group.end());
  const Real high = *std::max_element(group.begin(), group.end());
  const Real top = std::ldexp(Real{1}, bits) - 1;
  const Real zero = half(low);
  const Real scale = half(static_cast<float>((high - low) / top));
  Vec out;
  for (const Real x : group) {
    Real best = 0;
    for (Real code = 0; scale > 0 && code <= top; ++code) {
      if (std::abs(zero + code * scale - x) < std::abs(zero + best * scale - x)) {
        best = code;
      }
    }
    out.push_back(zero + best * scale);
  }
  return out;
}

/// Each row of `rows` quantised in groups of `group` numbers along the row.
inline Rows quantized_rows(const Rows& rows, int bits, std::size_t group) {
  Rows out;
  for (const Vec& row : rows) {
    Vec made;
    for (std::size_t b = 0; b < row.size(); b += group) {
      const Vec part(row.begin() + static_cast<std::ptrdiff_t>(b),
                     row.begin() + static_cast<std::ptrdiff_t>(std::min(b + group, row.size())));
      const Vec read = quantized(part, bits);
      made.insert(made.end(), read.begin(), read.end());
    }
    out.push_back(made);
  }
  return out;
}

}  // namespace reference
