// Q-Filters' direction by power iteration in long double.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// First right singular vector of the queries of query head `g` at positions [begin, end), with the
/// sign of their mean projection.
Vec query_direction(const kvbench::KvHead& head, Index g, Index begin, Index end);

}  // namespace reference
