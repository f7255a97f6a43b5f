// A number as two halves, which hold 22 of its bits: what tensor cores multiply
// (core/tile_product.hpp).
//
// Under one power of two S of a whole operand, chosen so that max |x| S lies in [2^14, 2^15),
//   hi = half(x S),   lo = half((x S - hi) 2^11),   x S = (hi + lo 2^-11) (1 + e),  |e| <= 2^-22.
// Elements below 2^-28 of the largest are subnormal halves: the loss is then at most 2^-36 / S,
// 2^-50 of the largest. Where every element has 11 significant bits (float16 and bfloat16 traces)
// lo is 0 but for such small elements, and leaving it out costs at most 2^-25 / S.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/float16.hpp"
#include "core/math.hpp"

#if defined(KVB_CUDA_HEADERS)
#include <cuda_fp16.h>
#endif

namespace kvbench {

/// float_to_half, by the GPU's own instruction there: the same bits, NaN's payload aside.
KVB_HD inline std::uint16_t half_bits(float x) {
#if defined(KVB_DEVICE_CODE)
  return __half_as_ushort(__float2half_rn(x));
#else
  return float_to_half(x);
#endif
}

KVB_HD inline float half_value(std::uint16_t bits) {
#if defined(KVB_DEVICE_CODE)
  return __half2float(__ushort_as_half(bits));
#else
  return half_to_float(bits);
#endif
}

/// What lo is multiplied by before it is rounded, and its inverse.
inline constexpr float kLowScale = 0x1p11F;
inline constexpr float kLowUnit = 0x1p-11F;

struct SplitHalf {
  std::uint16_t hi;
  std::uint16_t lo;
};

/// x S, |x S| < 2^15, in float or double, as two halves.
template <class Real>
KVB_HD SplitHalf split_half(Real scaled) {
  const std::uint16_t hi = half_bits(static_cast<float>(scaled));
  const Real rest = scaled - static_cast<Real>(half_value(hi));
  return {hi, half_bits(static_cast<float>(rest * static_cast<Real>(kLowScale)))};
}

/// How an operand is made halves: S = 2^exponent; `split`: lo is kept.
struct HalfScale {
  int exponent = 0;
  bool split = true;
};

/// Of an operand whose largest magnitude is `most` (finite). The bound from above leaves operands
/// below 2^-26 less than 22 bits, and keeps what a factor divides them by within float32.
inline HalfScale half_scale(double most, bool split) {
  const int exponent = most > 0.0 ? 14 - std::ilogb(most) : 0;
  return {std::min(exponent, 40), split};
}

/// Whether x has at most 11 significant bits: hi alone holds it unless it is a subnormal half.
KVB_HD inline bool fits_half(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x1fffU) == 0;
}

}  // namespace kvbench
