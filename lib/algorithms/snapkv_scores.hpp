// The observation-window scores that snapkv, pyramidkv and adakv select by.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
#pragma once

#include <string_view>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `window`, `kernel`, `pool`, `reduce`.
std::vector<ParamSpec> snapkv_params();

/// `window`: how many of the last scoring queries the scores are defined by (info.query_window).
Index snapkv_window(const Params& params);

/// What info.check of `method` owes. Errors: InputError where `kernel` is even, since pooling is
/// symmetric about a token.
void check_snapkv_params(std::string_view method, const Params& params);

/// Scores of the task's tokens [m], all finite and >= 0: per query head the mean softmax weight
/// from the last `window` scoring queries, each over its whole causal past (0 for what it cannot
/// see); pooled over the task's tokens at positions within kernel/2 of each; then reduced over the
/// group. No scoring query: all 0. Time O(group m kernel) beside the sums. `kernel` is odd.
std::vector<double> snapkv_scores(const Task& task, const Params& params);

}  // namespace kvbench
