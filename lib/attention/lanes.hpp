// Reductions over tokens in float64: token i goes to lane i % 16, lanes are joined as a tree. So no
// sum is one serial chain, and its bits depend neither on the instruction set nor on who calls.
#pragma once

#include <limits>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

inline constexpr Index kSumLanes =
    16;  ///< two AVX-512 or four AVX2 registers: their latency is hidden

/// The lanes joined: lane l with l + 8, then l + 4, l + 2, l + 1.
template <class Join>
double join_lanes(double (&lane)[kSumLanes], Join join) {
  for (Index width = kSumLanes / 2; width > 0; width /= 2) {
    for (Index l = 0; l < width; ++l) {
      lane[l] = join(lane[l], lane[l + width]);
    }
  }
  return lane[0];
}

/// The largest of x [n]; -inf of none. NaN is never larger.
inline double largest(const double* x, Index n) {
  double lane[kSumLanes];
  for (double& l : lane) {
    l = -std::numeric_limits<double>::infinity();
  }
  const auto larger = [](double a, double b) { return b > a ? b : a; };
  Index i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
#pragma omp simd
    for (Index l = 0; l < kSumLanes; ++l) {
      lane[l] = larger(lane[l], x[i + l]);
    }
  }
  for (Index l = 0; i < n; ++i, ++l) {
    lane[l] = larger(lane[l], x[i]);
  }
  return join_lanes(lane, larger);
}

/// x [n] becomes exp(x - shift); returns the sum.
inline double exponentials(double* x, Index n, double shift) {
  double lane[kSumLanes] = {};
  Index i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
#pragma omp simd
    for (Index l = 0; l < kSumLanes; ++l) {
      x[i + l] = exp_shared(x[i + l] - shift);
      lane[l] += x[i + l];
    }
  }
  for (Index l = 0; i < n; ++i, ++l) {
    x[i] = exp_shared(x[i] - shift);
    lane[l] += x[i];
  }
  return join_lanes(lane, [](double a, double b) { return a + b; });
}

}  // namespace kvbench
