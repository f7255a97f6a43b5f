// Similarities of two keys as integers, from their cosine, so that sums are exact in any order
// (attention/facility_location.hpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

enum class Similarity { relu, one_plus, absolute };

/// The integer of similarity 1 (of 2 for 1 + cos).
inline constexpr std::int32_t kSimilarityOne = std::int32_t{1} << 30;

/// x in [0, 1], rounded to the nearest integer. Adding a half is exact enough there and, unlike
/// lround, vectorises.
KVB_HD inline std::int32_t to_fixed(double x) {
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return static_cast<std::int32_t>(x * static_cast<double>(kSimilarityOne) + 0.5);
}
/// A float in [2^-6, 1] is a multiple of 2^-30; a smaller one is truncated.
KVB_HD inline std::int32_t to_fixed(float x) {
  return static_cast<std::int32_t>(x * static_cast<float>(kSimilarityOne));
}

/// Cosines of at least this count as 1. The elements of two equal keys of width d are rounded once
/// and their product d times, each by at most half an epsilon, so their cosine reaches this. A
/// key's similarity to itself and to its copies is then exactly 1, and none is larger.
template <class T>
KVB_HD T cosine_of_equal(Index d) {
  return T{1} - static_cast<T>(d + 4) * (std::numeric_limits<T>::epsilon() / 2);
}

/// The integer of two keys' similarity from their cosine (0 if either is a zero key). `equal`:
/// cosine_of_equal. `offset`, for one_plus: 1/2, or 0 if either is a zero key.
template <class T>
KVB_HD std::int32_t fixed_similarity(Similarity kind, T cosine, T equal, T offset) {
  const T c = kind == Similarity::absolute ? std::abs(cosine) : cosine;
  const T snapped = c >= equal ? T{1} : c;
  const T x = kind == Similarity::one_plus ? T{0.5} * snapped + offset : snapped;
  return to_fixed(x > T{0} ? x : T{0});
}

}  // namespace kvbench
