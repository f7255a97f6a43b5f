// The places of the largest scores: the choice of every method that ranks tokens. Knows no method.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

class DeviceHead;

/// Scores from which on a device chooses; the places are the same either way. Among so many a CPU
/// chooses in some 0.6 ms; a device is estimated at half of that, for launches and copies.
inline constexpr Index kTopOnDevice = Index{1} << 15;

/// The places of the `count` largest scores, ascending; of equal scores (-0 and 0 are) the lowest
/// places. `scores` not NaN. 0 <= count <= scores.size(). Time O(m), memory O(m); on `device`,
/// where not null and the scores are kTopOnDevice or more, the same places.
std::vector<Index> top_places(std::span<const double> scores, Index count,
                              const DeviceHead* device = nullptr);

}  // namespace kvbench
