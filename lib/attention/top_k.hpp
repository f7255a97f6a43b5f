// The places of the largest scores: the choice of every method that ranks tokens. Knows no method.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// The places of the `count` largest scores, ascending; of equal scores (-0 and 0 are) the lowest
/// places. `scores` not NaN. 0 <= count <= scores.size(). Time O(m), memory O(m).
std::vector<Index> top_places(std::span<const double> scores, Index count);

}  // namespace kvbench
