// The observation-window scores that snapkv, pyramidkv and adakv select by.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `window`, `kernel`, `pool`, `reduce`.
std::vector<ParamSpec> snapkv_params();

/// Scores of the task's tokens [m], all finite and >= 0: per query head the mean softmax weight
/// from the last `window` scoring queries, each over its whole causal past (0 for what it cannot
/// see); pooled over the task's tokens at positions within kernel/2 of each; then reduced over the
/// group. No scoring query: all 0. Time O(group m kernel) beside the sums.
/// Errors: InputError where `kernel` is even.
std::vector<double> snapkv_scores(const Task& task, const Params& params);

}  // namespace kvbench
