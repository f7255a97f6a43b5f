// ThinK by its definition.
#pragma once

#include "reference/reference.hpp"

namespace reference {

/// Channels, ascending, that stay of `keys` when `dropped` go: those with the largest product of
/// the mean over `queries` of q_c^2 and the mean over `keys` of k_c^2; of equal ones the lowest.
std::vector<Index> thin_channels(const Rows& keys, const Rows& queries, std::size_t dropped);

}  // namespace reference
