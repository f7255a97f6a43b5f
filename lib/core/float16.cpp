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
