// One budget for several heads: the highest scores over all heads are kept (adakv, kvzip,
// defensivekv, dropkv).
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// A survey for pooled_shares: `tokens` that the head could keep alone; data: scores [m], then
/// positions.
Survey competing(const Task& task, Index tokens, std::vector<double> scores);

/// Tokens kept per survey (from `competing`): the best safe(tokens) of each head, then the highest
/// scores of all others, to the sum of the heads' tokens. Ties go to the lower position, then KV
/// head, then layer. Time O(M log M) for M tokens of all heads.
std::vector<Share> pooled_shares(std::span<const Survey> surveys,
                                 const std::function<Index(Index tokens)>& safe);

/// Throws InputError, "<who> heads of one shape and type", unless all pairs have the same bytes.
void require_one_shape(std::span<const Survey> surveys, const std::string& who);

}  // namespace kvbench
