// SimLayerKV's layers from its definition.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// The mean softmax weight that queries [begin, end) of all heads' query heads give to what is not
/// in `middle`.
Real laziness(const std::vector<kvbench::KvHead>& layer, const std::vector<Index>& middle,
              Index begin, Index end);

/// By layer, whether it keeps its middle: `most` layers do, the least lazy ones; of equal ones the
/// lowest.
std::vector<bool> least_lazy(const Vec& laziness, Index most);

}  // namespace reference
