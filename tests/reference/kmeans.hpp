// k-means by its definition: everything recomputed from the rows in long double.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// Members (numbers of rows, ascending) of each cluster after `rounds` assignments: of the rows to
/// the nearest centre (ties to the earlier), whose members' means are then the centres. The first
/// centres are the rows `start`. Clusters without a row are gone.
std::vector<std::vector<Index>> lloyd(const Rows& rows, const std::vector<Index>& start,
                                      Index rounds);

/// Mean of the rows with those numbers.
Vec mean_of(const Rows& rows, const std::vector<Index>& members);

}  // namespace reference
