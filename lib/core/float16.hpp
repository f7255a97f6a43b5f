// IEEE half and bfloat16: conversion, rounding, and a bulk finite check. Rounding is to nearest,
// ties to even, bit-exact for denormals, infinities and NaN. Narrowing any NaN, and widening a half
// NaN, keeps the sign and the upper payload bits and sets the quiet bit, as hardware does. Widening
// bfloat16 keeps every bit. Bulk functions use F16C and AVX2 on x86-64 if available, otherwise the
// scalar code that CPU and CUDA share.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstdint>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

KVB_HD inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    const std::uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
  // A denormal half is fraction * 2^-24; float32 holds it as a normal number.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

KVB_HD inline float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

KVB_HD inline std::uint16_t float_to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {
    const std::uint32_t payload = (magnitude >> 13) & 0x3ffu;
    const std::uint32_t quiet = magnitude > 0x7f800000u ? 0x200u : 0u;
    return static_cast<std::uint16_t>(sign | 0x7c00u | quiet | payload);
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and above round past the largest half, 65504
    return static_cast<std::uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x33000000u) {  // below 2^-25, half of the smallest denormal
    return static_cast<std::uint16_t>(sign);
  }
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t significand = 0;
  std::uint32_t drop = 0;  // low bits of the significand that do not fit
  std::uint32_t base = 0;  // the half's exponent field, so that a carry moves into it
  if (exponent >= 113u) {
    significand = magnitude & 0x7fffffu;
    drop = 13;
    base = (exponent - 112u) << 10;
  } else {
    significand = (magnitude & 0x7fffffu) | 0x800000u;
    drop = 126u - exponent;
  }
  const std::uint32_t half_ulp = 1u << (drop - 1u);
  const std::uint32_t kept = significand >> drop;
  const std::uint32_t lost = significand & ((1u << drop) - 1u);
  const bool up = lost > half_ulp || (lost == half_ulp && (kept & 1u) != 0);
  return static_cast<std::uint16_t>(sign | (base + kept + (up ? 1u : 0u)));
}

KVB_HD inline std::uint16_t float_to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits | 0x00400000u) >> 16);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Converts `count` elements. Arrays must not overlap; no alignment is needed.
void half_to_float(const std::uint16_t* in, float* out, Index count);
void bfloat16_to_float(const std::uint16_t* in, float* out, Index count);
void float_to_half(const float* in, std::uint16_t* out, Index count);
void float_to_bfloat16(const float* in, std::uint16_t* out, Index count);

/// Rounds `x` to an element of `type`; float32 is unchanged. A magnitude beyond the largest finite
/// element becomes infinity.
KVB_HD inline float round_to(DType type, float x) {
  switch (type) {
    case DType::float16: return half_to_float(float_to_half(x));
    case DType::bfloat16: return bfloat16_to_float(float_to_bfloat16(x));
    case DType::float32: return x;
  }
  return x;
}

/// The largest finite element.
KVB_HD constexpr float largest_element(DType type) {
  return type == DType::float16 ? 65504.0F : type == DType::bfloat16 ? 0x1.fep127F : FLT_MAX;
}

/// Rounds `x` to an element of `type`, clamped to the finite range, as a cache stores it.
KVB_HD inline float stored(DType type, double x) {
  const auto edge = static_cast<double>(largest_element(type));
  return round_to(type, static_cast<float>(std::clamp(x, -edge, edge)));
}

/// sums[i] = stored(type, sums[i] + add[i]), `count` elements.
void store_sums(DType type, const double* add, float* sums, Index count);

/// In place, `count` elements.
void round_to(DType type, float* x, Index count);

/// True if no element is NaN or infinite. Works on bits, so it holds under fast-math.
bool all_finite(const float* x, Index count);

/// Index of the first element that is NaN or infinite, or `count`.
Index first_non_finite(const float* x, Index count);

}  // namespace kvbench
