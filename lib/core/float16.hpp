// IEEE half and bfloat16: conversion to and from float32, rounding, and a bulk finite check.
// All roundings are to nearest, ties to even, and bit-exact for denormals, infinities and NaN.
//
// NaN: narrowing, and widening of half, keep the sign and the upper payload bits and set the quiet
// bit, as the hardware does; NaN never turns into infinity. Widening of bfloat16 keeps every bit.
// x86-64 with F16C and AVX2 uses them in the bulk functions; elsewhere the scalar code runs.
#pragma once

#include <bit>
#include <cstdint>

#include "core/types.hpp"

namespace kvbench {

float half_to_float(std::uint16_t bits);
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float x);
std::uint16_t float_to_bfloat16(float x);

/// `out[i]` from `in[i]`, 0 <= i < count. Arrays must not overlap; no alignment is needed.
void half_to_float(const std::uint16_t* in, float* out, Index count);
void bfloat16_to_float(const std::uint16_t* in, float* out, Index count);
void float_to_half(const float* in, std::uint16_t* out, Index count);
void float_to_bfloat16(const float* in, std::uint16_t* out, Index count);

/// `x` rounded to an element of `type`, as float32; float32 returns `x` as it is. A magnitude that
/// rounds beyond the largest finite element becomes infinity.
float round_to(DType type, float x);

/// In place, `count` elements.
void round_to(DType type, float* x, Index count);

/// True if no element is NaN or infinite. Works on the bits, so it also holds under fast-math.
bool all_finite(const float* x, Index count);

/// Position of the first element that is NaN or infinite, or `count`.
Index first_non_finite(const float* x, Index count);

}  // namespace kvbench
