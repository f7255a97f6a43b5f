// Attention scores that query-aware methods select by: how much softmax weight tokens received from
// the scoring queries, each over its own causal past. A block of queries at a time, never
// an n x n matrix. Knows no method.
#pragma once

#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// out[g][i], i in [0, n): sum over queries at positions [queries.begin, queries.end) of
/// p_ji = softmax_i(s <k_i, q_j>) over the tokens that j sees and the head's sink logit; 0 where no
/// query sees i. One vector per query head.
/// Positions before q_start are skipped (the trace holds no query there). The order of summation is
/// fixed. Time O(group m n d), memory O(group n) and a block of queries' weights.
std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries);

/// Bytes that attention_sums holds for `queries` queries of a head of n tokens, beside the sums.
Index attention_sums_bytes(Precision precision, Index queries, Index n);

/// Element-wise reduction over the group: [group][n] -> [n].
std::vector<double> reduce_group(const std::vector<std::vector<double>>& scores, Reduce reduce);

}  // namespace kvbench
