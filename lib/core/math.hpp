// Arithmetic that CPU and CUDA share to the bit: one exp, written in explicit FMAs, so that a
// selection cannot differ because two math libraries round differently. The build fuses nothing on
// its own (-ffp-contract=off); what is fused here is written so.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#define KVB_HD __host__ __device__
#else
#define KVB_HD
#endif

namespace kvbench {

/// exp(x), within 1 ulp on [-708, 709]. Below: exactly 0. Above: +inf. NaN stays NaN.
/// Cody-Waite reduction to |r| <= ln(2)/2 and the Taylor polynomial of degree 13, whose remainder
/// there (0.347^14 / 14! = 4e-18) is below half an ulp of the result. Free of branches, so that
/// loops over it vectorise.
KVB_HD inline double exp_shared(double x) {
  constexpr double kLow = -708.0;
  constexpr double kHigh = 709.0;
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 bits: n * kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double clamped = x < kLow ? kLow : (x > kHigh ? kHigh : x);
  const double t = std::fma(clamped, kLog2E, kMagic);
  const double n = t - kMagic;
  double r = std::fma(-n, kLn2High, clamped);
  r = std::fma(-n, kLn2Low, r);
  double p = 1.0 / 6227020800.0;
  p = std::fma(p, r, 1.0 / 479001600.0);
  p = std::fma(p, r, 1.0 / 39916800.0);
  p = std::fma(p, r, 1.0 / 3628800.0);
  p = std::fma(p, r, 1.0 / 362880.0);
  p = std::fma(p, r, 1.0 / 40320.0);
  p = std::fma(p, r, 1.0 / 5040.0);
  p = std::fma(p, r, 1.0 / 720.0);
  p = std::fma(p, r, 1.0 / 120.0);
  p = std::fma(p, r, 1.0 / 24.0);
  p = std::fma(p, r, 1.0 / 6.0);
  p = std::fma(p, r, 0.5);
  p = std::fma(p, r, 1.0);
  p = std::fma(p, r, 1.0);
  // The integer n sits in the low bits of t; its exponent field is made directly.
  const auto bits = std::bit_cast<std::uint64_t>(t) - std::bit_cast<std::uint64_t>(kMagic);
  const double scale = std::bit_cast<double>((bits + 1023U) << 52U);
  const double result = p * scale;
  return x < kLow ? 0.0 : (x > kHigh ? std::numeric_limits<double>::infinity() : result);
}

/// S * exp(L) for any finite S and any L (also +-inf), never NaN: 0 * inf counts as 0.
/// The exponential is applied in two halves so that S can be pulled back into range.
KVB_HD inline double scaled_exp(double s, double l) {
  if (s == 0.0) {
    return 0.0;
  }
  const double half = exp_shared(0.5 * l);
  return s * half * half;
}

}  // namespace kvbench
