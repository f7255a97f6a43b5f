// In place of CUDA's header: halves as bits.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cuda_runtime.h"

struct __half {
  std::uint16_t bits;
};

inline __half __float2half_rn(float x) {
  return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)};
}
inline float __half2float(__half x) {
  return _cvtsh_ss(x.bits);
}
inline std::uint16_t __half_as_ushort(__half x) {
  return x.bits;
}
inline __half __ushort_as_half(std::uint16_t bits) {
  return {bits};
}
