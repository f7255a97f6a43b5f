// Scores of middle tokens from queries: the observation-window scores that snapkv, pyramidkv and
// adakv select by, and the parts that every query-scoring method needs.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `reduce`: how scores of a group's query heads become one per token.
ParamSpec reduce_param();
Reduce reduce_of(const Params& params);

/// out[i] = all[tokens[i]]; `all` [n].
std::vector<double> take_scores(const std::vector<double>& all, std::span<const Index> tokens);

/// floor(ratio * count), where a product that is whole but for its rounding counts as that number
/// (0.29 * 100 is 28.999999999999996). 0 <= ratio <= 1; the result is in [0, count].
Index floor_share(double ratio, Index count);

/// The parameters `window`, `kernel`, `pool`, `reduce`.
std::vector<ParamSpec> snapkv_params();

/// Scores of the task's tokens [m], all finite and >= 0: per query head the mean softmax weight
/// from the last `window` scoring queries, each over its whole causal past (0 for what it cannot
/// see); pooled over the task's tokens at positions within kernel/2 of each; then reduced over the
/// group. No scoring query: all 0. Time O(group m kernel) beside the sums.
/// Errors: InputError where `kernel` is even.
std::vector<double> snapkv_scores(const Task& task, const Params& params);

}  // namespace kvbench
