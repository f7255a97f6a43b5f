// Observation-window scores of snapkv and of the methods that score as it does.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// Throws InputError if the kernel is even: pooling is symmetric.
JobFacts snapkv_facts(const Params& params);
/// The common part of these methods. Parameters: the sizes, `own`, `window`, `kernel`, `pool`,
/// `reduce`.
MethodInfo snapkv_info(std::string name, const std::vector<ParamSpec>& own = {});

/// Scores of the task's tokens [m], finite and >= 0. Per query head: mean softmax weight from the
/// last `window` scoring queries over their causal past (0 if not visible), or from the set named
/// by `ref` (extra_sums); pooled over the task's tokens at positions within kernel / 2; then
/// reduced over the group. All 0 without scoring queries. Time O(group m kernel) beside the sums.
std::vector<double> snapkv_scores(const Task& task, const Params& params);

}  // namespace kvbench
