// exp and log1p with the same bits on CPU and CUDA, in explicit FMAs, so that selections do not
// depend on a math library. The build contracts nothing (-ffp-contract=off).
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

// For loops of a kernel over a thread's array: it stays in registers only if every index is known
// at compile time.
#if defined(__CUDA_ARCH__)
#define KVB_UNROLL _Pragma("unroll")
#else
#define KVB_UNROLL
#endif

namespace kvbench {

/// exp(x), within 1 ulp on [-708, 709]; exactly 0 below, +inf above, NaN for NaN. Cody-Waite
/// reduction to |r| <= ln(2)/2 and the Taylor polynomial of degree 13, whose remainder (0.347^14 /
/// 14! = 4e-18) is below half an ulp. Branch-free, so that loops vectorise.
KVB_HD inline double exp_shared(double x) {
  constexpr double kLow = -708.0;
  constexpr double kHigh = 709.0;
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 bits: n * kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double above = kLow > x ? kLow : x;      // each a single instruction, NaN included
  const double clamped = kHigh < above ? kHigh : above;
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
  // The low bits of t hold n; the exponent field is made directly.
  const auto bits = std::bit_cast<std::uint64_t>(t) - std::bit_cast<std::uint64_t>(kMagic);
  const double scale = std::bit_cast<double>((bits + 1023U) << 52U);
  const double result = p * scale;
  return x < kLow ? 0.0 : (x > kHigh ? std::numeric_limits<double>::infinity() : result);
}

/// exp(x) in float32, within 1 ulp on [-87, 88]; exactly 0 below, +inf above, NaN for NaN. Degree
/// 7: 0.347^8 / 8! = 5e-9.
KVB_HD inline float exp_shared(float x) {
  constexpr float kLow = -87.0F;
  constexpr float kHigh = 88.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 6.93145752e-01F;  // 15 bits: n * kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-06F;
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float above = kLow > x ? kLow : x;
  const float clamped = kHigh < above ? kHigh : above;
  const float t = std::fma(clamped, kLog2E, kMagic);
  const float n = t - kMagic;
  float r = std::fma(-n, kLn2High, clamped);
  r = std::fma(-n, kLn2Low, r);
  float p = 1.0F / 5040.0F;
  p = std::fma(p, r, 1.0F / 720.0F);
  p = std::fma(p, r, 1.0F / 120.0F);
  p = std::fma(p, r, 1.0F / 24.0F);
  p = std::fma(p, r, 1.0F / 6.0F);
  p = std::fma(p, r, 0.5F);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  const auto bits = std::bit_cast<std::uint32_t>(t) - std::bit_cast<std::uint32_t>(kMagic);
  const float scale = std::bit_cast<float>((bits + 127U) << 23U);
  const float result = p * scale;
  return x < kLow ? 0.0F : (x > kHigh ? std::numeric_limits<float>::infinity() : result);
}

/// log(1 + x), within 1 ulp on (-1, 1e300]; -inf at -1, NaN below and for NaN, +inf at +inf. 1 + x
/// = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)]; log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f
/// / (2 + f), R of degree 14 in s as in FreeBSD's e_log.c (remainder below 2^-58). The rounding
/// error of 1 + x is added back.
KVB_HD inline double log1p_shared(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 bits: k * kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr std::uint64_t kRootHalf = 0x3fe6a09e00000000U;  // just below sqrt(1/2)
  constexpr std::uint64_t kOne = 0x3ff0000000000000U;
  if (!(x > -1.0)) {
    return x == -1.0 ? -std::numeric_limits<double>::infinity()
                     : std::numeric_limits<double>::quiet_NaN();
  }
  if (x == std::numeric_limits<double>::infinity()) {
    return x;
  }
  double k = 0.0;
  double f = x;
  double lost = 0.0;
  if (x < -0.2928 || x > 0.4142) {  // otherwise f = x, exactly
    const double u = 1.0 + x;
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(u) + (kOne - kRootHalf);
    k = static_cast<double>(static_cast<std::int64_t>(bits >> 52U) - 1023);
    f = std::bit_cast<double>((bits & 0x000fffffffffffffU) + kRootHalf) - 1.0;
    lost = (x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x)) / u;
  }
  const double half_square = 0.5 * f * f;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 1.479819860511658591e-01;
  p = std::fma(p, z, 1.531383769920937332e-01);
  p = std::fma(p, z, 1.818357216161805012e-01);
  p = std::fma(p, z, 2.222219843214978396e-01);
  p = std::fma(p, z, 2.857142874366239149e-01);
  p = std::fma(p, z, 3.999999999940941908e-01);
  p = std::fma(p, z, 6.666666666666735130e-01);
  const double rest = std::fma(s, std::fma(p, z, half_square), std::fma(k, kLn2Low, lost));
  return (rest - half_square) + f + k * kLn2High;
}

/// S * exp(L) for finite S and any L (also +-inf), never NaN: 0 * inf is 0. Two halves of the
/// exponential keep large S in range.
KVB_HD inline double scaled_exp(double s, double l) {
  if (s == 0.0) {
    return 0.0;
  }
  const double half = exp_shared(0.5 * l);
  return s * half * half;
}

}  // namespace kvbench
