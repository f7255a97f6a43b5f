// MergeAndReduce as its paper's proof describes it: the whole sequence at once, batch by batch and
// level by level, with no stream in it.
#pragma once

#include <functional>
#include <vector>

#include "core/types.hpp"

namespace reference {

using kvbench::Index;

/// Survivors of block `number` of level `level`.
using HalveReference =
    std::function<std::vector<Index>(const std::vector<Index>& block, Index level, Index number)>;

/// C^0 .. C^T after all of `tokens`.
std::vector<std::vector<Index>> merge_and_reduce(const std::vector<Index>& tokens, Index t,
                                                 Index levels, const HalveReference& halve);

/// The smaller side of the signs (+1 on a tie), filled up to half with the earliest others.
std::vector<Index> smaller_half(const std::vector<Index>& block, const std::vector<int>& signs);

/// i with 2^i <= norm < 2^{i+1}, by counting doublings.
int norm_bucket(long double norm);

}  // namespace reference
