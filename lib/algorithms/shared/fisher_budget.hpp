// Layer budgets by Fisher information (KVReviver, technical appendix, "Fisher Information"): each
// layer's share of a common budget is proportional to the Fisher information of its key and value
// weight matrices.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Splits `total` (bytes or tokens) over layers in proportion to `fisher` [layers]. What exceeds a
/// layer's cap goes to the others in the same proportion; layers with Fisher information 0 share
/// evenly if all open ones are 0. Largest remainder, ties to the lower layer: the parts sum to
/// min(total, sum of caps). total, caps and fisher >= 0 and finite.
std::vector<Index> fisher_split(std::span<const double> fisher, std::span<const Index> caps,
                                Index total);

}  // namespace kvbench
