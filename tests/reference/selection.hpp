// Slow references of the baselines' scores, from their definitions, in long double.
#pragma once

#include <map>
#include <string>

#include "reference/reference.hpp"

namespace reference {

enum class ReferenceReduce { mean, max, sum };

inline const std::map<std::string, ReferenceReduce> kReduces = {
    {"mean", ReferenceReduce::mean}, {"max", ReferenceReduce::max}, {"sum", ReferenceReduce::sum}};

/// [group][n]: sum of the softmax weights that each token gets from the queries at positions
/// [begin, end), each over its own causal past.
Rows attention_sums(const kvbench::KvHead& head, Index begin, Index end);

/// One score per token from a group's.
Vec reduced(const Rows& scores, ReferenceReduce reduce);

/// The scores of `tokens`.
Vec taken(const Vec& all, const std::vector<Index>& tokens);

/// SnapKV: mean weight from queries [begin, end), pooled over tokens at positions within `half`,
/// then reduced.
Vec snapkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin, Index end,
           Index half, bool largest, ReferenceReduce reduce);

/// `count` of `tokens`, which ascend, with the largest scores, ascending; ties go to the lowest
/// position.
std::vector<Index> best(const std::vector<Index>& tokens, const Vec& scores, Index count);

/// How many tokens each head keeps of `each` times the heads: `safe` of its own best, then the best
/// of all that is left, one at a time; ties go to the lowest position, then head.
std::vector<Index> pooled_counts(const Rows& scores, Index each, Index safe);

/// By head, the `count` tokens with the largest of all heads' scores [heads][tokens], ascending;
/// ties go to the lowest position, then head.
std::vector<std::vector<Index>> best_of_heads(const std::vector<Index>& tokens, const Rows& scores,
                                              Index count);

/// Whether `kept` is a set of `count` tokens with the largest scores: no token left out beats one
/// kept by more than a relative `tolerance` of the larger. For scores that rounding may swap.
bool is_top(const std::vector<Index>& tokens, const Vec& scores, const std::vector<Index>& kept,
            Index count, Real tolerance);

}  // namespace reference
