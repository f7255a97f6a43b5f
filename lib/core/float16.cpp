#include "core/float16.hpp"

#include <cstddef>

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define KVBENCH_F16C 1
#else
#define KVBENCH_F16C 0
#endif

namespace kvbench {

namespace {

constexpr std::uint32_t kExponent = 0x7f800000u;

bool is_finite_bits(std::uint32_t bits) {
  return (bits & kExponent) != kExponent;
}

std::uint32_t round_bits_bfloat16(std::uint32_t bits) {
  if ((bits & 0x7fffffffu) > kExponent) {
    return (bits | 0x00400000u) & 0xffff0000u;
  }
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
}

#if KVBENCH_F16C
// Eight float32 bit patterns rounded to bfloat16, still in the upper halves of their lanes.
__m256i round_bits_bfloat16(__m256i bits) {
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  return _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, is_nan),
                          _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
}

__m256i load8(const float* p) {
  return _mm256_castps_si256(_mm256_loadu_ps(p));
}
#endif

}  // namespace

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    const std::uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | kExponent | quiet | (fraction << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
  if (fraction == 0) {
    return std::bit_cast<float>(sign);
  }
  // A denormal half is fraction * 2^-24; float32 holds it as a normal number.
  const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - 21u;
  fraction = (fraction << shift) & 0x3ffu;
  return std::bit_cast<float>(sign | ((113u - shift) << 23) | (fraction << 13));
}

float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= kExponent) {
    const std::uint32_t payload = (magnitude >> 13) & 0x3ffu;
    const std::uint32_t quiet = magnitude > kExponent ? 0x200u : 0u;
    return static_cast<std::uint16_t>(sign | 0x7c00u | quiet | payload);
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and above round past the largest half, 65504
    return static_cast<std::uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x33000000u) {  // below 2^-25, half of the least denormal
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

std::uint16_t float_to_bfloat16(float x) {
  return static_cast<std::uint16_t>(round_bits_bfloat16(std::bit_cast<std::uint32_t>(x)) >> 16);
}

void half_to_float(const std::uint16_t* in, float* out, Index count) {
  Index i = 0;
#if KVBENCH_F16C
  for (; i + 8 <= count; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
  }
#endif
  for (; i < count; ++i) {
    out[i] = half_to_float(in[i]);
  }
}

void bfloat16_to_float(const std::uint16_t* in, float* out, Index count) {
  Index i = 0;
#if KVBENCH_F16C
  for (; i + 8 <= count; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(wide));
  }
#endif
  for (; i < count; ++i) {
    out[i] = bfloat16_to_float(in[i]);
  }
}

void float_to_half(const float* in, std::uint16_t* out, Index count) {
  Index i = 0;
#if KVBENCH_F16C
  for (; i + 8 <= count; i += 8) {
    const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
  }
#endif
  for (; i < count; ++i) {
    out[i] = float_to_half(in[i]);
  }
}

void float_to_bfloat16(const float* in, std::uint16_t* out, Index count) {
  Index i = 0;
#if KVBENCH_F16C
  for (; i + 8 <= count; i += 8) {
    const __m256i wide = _mm256_srli_epi32(round_bits_bfloat16(load8(in + i)), 16);
    const __m128i h =
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
  }
#endif
  for (; i < count; ++i) {
    out[i] = float_to_bfloat16(in[i]);
  }
}

float round_to(DType type, float x) {
  switch (type) {
    case DType::float16: return half_to_float(float_to_half(x));
    case DType::bfloat16: return bfloat16_to_float(float_to_bfloat16(x));
    case DType::float32: return x;
  }
  return x;
}

void round_to(DType type, float* x, Index count) {
  if (type == DType::float32) {
    return;
  }
  Index i = 0;
#if KVBENCH_F16C
  if (type == DType::float16) {
    for (; i + 8 <= count; i += 8) {
      const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_ps(x + i, _mm256_cvtph_ps(h));
    }
  } else {
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(x + i, _mm256_castsi256_ps(round_bits_bfloat16(load8(x + i))));
    }
  }
#endif
  for (; i < count; ++i) {
    x[i] = round_to(type, x[i]);
  }
}

bool all_finite(const float* x, Index count) {
  Index i = 0;
#if KVBENCH_F16C
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256i bad = _mm256_setzero_si256();
  for (; i + 8 <= count; i += 8) {
    const __m256i field = _mm256_and_si256(load8(x + i), exponent);
    bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(field, exponent));
  }
  if (_mm256_testz_si256(bad, bad) == 0) {
    return false;
  }
#endif
  for (; i < count; ++i) {
    if (!is_finite_bits(std::bit_cast<std::uint32_t>(x[i]))) {
      return false;
    }
  }
  return true;
}

Index first_non_finite(const float* x, Index count) {
  // Blocks first: the answer is almost always `count`.
  constexpr Index kBlock = 4096;
  Index i = 0;
  while (i + kBlock <= count && all_finite(x + i, kBlock)) {
    i += kBlock;
  }
  for (; i < count; ++i) {
    if (!is_finite_bits(std::bit_cast<std::uint32_t>(x[i]))) {
      return i;
    }
  }
  return count;
}

}  // namespace kvbench
