#include "core/float16.hpp"

#include <algorithm>

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define KVBENCH_F16C 1
#else
#define KVBENCH_F16C 0
#endif

namespace kvbench {

namespace {

bool is_finite(float x) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  return (std::bit_cast<std::uint32_t>(x) & kExponent) != kExponent;
}

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
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
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
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    out[i] = float_to_bfloat16(in[i]);
  }
}

void round_to(DType type, float* x, Index count) {
  if (type == DType::bfloat16) {
#pragma omp simd
    for (Index i = 0; i < count; ++i) {
      x[i] = bfloat16_to_float(float_to_bfloat16(x[i]));
    }
  } else if (type == DType::float16) {
    Index i = 0;
#if KVBENCH_F16C
    for (; i + 8 <= count; i += 8) {
      const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_ps(x + i, _mm256_cvtph_ps(h));
    }
#endif
    for (; i < count; ++i) {
      x[i] = round_to(type, x[i]);
    }
  }
}

void store_sums(DType type, const double* add, float* sums, Index count) {
  const auto edge = static_cast<double>(largest_element(type));
  for (Index i = 0; i < count; ++i) {
    const double x = static_cast<double>(sums[i]) + add[i];
    sums[i] = static_cast<float>(std::clamp(x, -edge, edge));
  }
  round_to(type, sums, count);
}

bool all_finite(const float* x, Index count) {
  std::uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (Index i = 0; i < count; ++i) {
    bad |= is_finite(x[i]) ? 0U : 1U;
  }
  return bad == 0;
}

Index first_non_finite(const float* x, Index count) {
  // By blocks: the answer is almost always `count`.
  constexpr Index kBlock = 4096;
  Index i = 0;
  while (i + kBlock <= count && all_finite(x + i, kBlock)) {
    i += kBlock;
  }
  return std::find_if_not(x + i, x + count, is_finite) - x;
}

}  // namespace kvbench
