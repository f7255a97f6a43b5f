// Sums in one order for every instruction set: 16 lanes, one FMA after another in each, joined as a
// tree. A single chain would wait for each addition.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

inline constexpr Index kSumLanes = 16;

/// Sums the lanes, a power of two, as a tree; overwrites them.
template <std::size_t lanes>
KVB_HD double joined_lanes(double (&lane)[lanes]) {
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) {
      lane[l] += lane[l + half];
    }
  }
  return lane[0];
}

/// sum_t a[t] b[t], 0 <= t < n.
inline double dot(const double* a, const double* b, Index n) {
  double lane[kSumLanes] = {};
  Index t = 0;
  for (; t + kSumLanes <= n; t += kSumLanes) {
#pragma omp simd
    for (Index l = 0; l < kSumLanes; ++l) {
      lane[l] = std::fma(a[t + l], b[t + l], lane[l]);
    }
  }
  for (Index l = 0; t + l < n; ++l) {
    lane[l] = std::fma(a[t + l], b[t + l], lane[l]);
  }
  return joined_lanes(lane);
}

/// sum_t a[t], in the same order.
inline double sum(const double* a, Index n) {
  double lane[kSumLanes] = {};
  Index t = 0;
  for (; t + kSumLanes <= n; t += kSumLanes) {
#pragma omp simd
    for (Index l = 0; l < kSumLanes; ++l) {
      lane[l] += a[t + l];
    }
  }
  for (Index l = 0; t + l < n; ++l) {
    lane[l] += a[t + l];
  }
  return joined_lanes(lane);
}

/// y += factor x.
inline void add(double factor, const double* x, Index n, double* y) {
#pragma omp simd
  for (Index t = 0; t < n; ++t) {
    y[t] = std::fma(factor, x[t], y[t]);
  }
}

}  // namespace kvbench
