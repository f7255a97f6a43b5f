// One budget for the tokens of several heads: the best scores of all of them stay (adakv, kvzip).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The survey of a head whose tokens compete by `scores` [m]: `tokens` that it could keep alone;
/// values: scores and positions.
Survey competing(const Task& task, Index tokens, std::vector<double> scores);

/// For each of `surveys` (as competing gives them) the number of its tokens that stay: safe(tokens)
/// of the best of each head, and of all others together the largest scores, until as many stay as
/// the heads would keep alone. Ties go to the lowest position, then KV head, then layer. Time
/// O(M log M) for M tokens of all heads.
std::vector<Share> pooled_shares(std::span<const Survey> surveys,
                                 const std::function<Index(Index tokens)>& safe);

}  // namespace kvbench
