// Similarities of two keys as integers, from their cosine: sums of them are exact, whatever their
// order (attention/facility_location.hpp).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/math.hpp"

namespace kvbench {

enum class Similarity { relu, one_plus, absolute };

/// The integer that stands for similarity 1 (for 1 + cos: 2).
inline constexpr std::int32_t kSimilarityOne = std::int32_t{1} << 30;

/// Rounded to the nearest integer; x in [0, 1 + rounding], where adding a half and cutting off is
/// right and, unlike lround, vectorises.
KVB_HD inline std::int32_t to_fixed(double x) {
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return static_cast<std::int32_t>(x * static_cast<double>(kSimilarityOne) + 0.5);
}

/// The integer of two keys' similarity from their cosine (0 where either is a zero key). `offset`,
/// read for one_plus alone: 1/2, or 0 where either is a zero key.
KVB_HD inline std::int32_t fixed_similarity(Similarity kind, double cosine, double offset) {
  if (kind == Similarity::absolute) {
    return to_fixed(std::abs(cosine));
  }
  const double x = kind == Similarity::relu ? cosine : 0.5 * cosine + offset;
  return to_fixed(x > 0.0 ? x : 0.0);
}

}  // namespace kvbench
