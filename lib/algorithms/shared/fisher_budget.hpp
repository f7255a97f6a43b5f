// Layer budgets by Fisher information (KVReviver, technical appendix, "Fisher Information"): each
// layer's share of a common budget is proportional to the Fisher information of its key and value
// weight matrices.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Splits `total` (bytes or tokens) over layers in proportion to `fisher` [layers], none above its
/// cap: what a capped layer cannot use goes to the others in the same proportion. Integers by
/// largest remainder, ties to the lower layer, so that the parts add up to
/// min(total, sum of caps) exactly. Where all layers with room left have Fisher information 0,
/// they share evenly. total >= 0, caps >= 0.
/// Errors: InputError where a Fisher value is negative or not finite, or the sizes differ.
std::vector<Index> fisher_split(std::span<const double> fisher, std::span<const Index> caps,
                                Index total);

}  // namespace kvbench
