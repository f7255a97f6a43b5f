// The observation-window scores that snapkv, pyramidkv, adakv and criticalkv select by.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
#pragma once

#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// What these methods have in common. Parameters: the sizes, the method's `own`, `window`,
/// `kernel`, `pool`, `reduce`. The check refuses an even `kernel`, since pooling is symmetric about
/// a token.
MethodInfo snapkv_info(std::string name, const std::vector<ParamSpec>& own = {});

/// Scores of the task's tokens [m], all finite and >= 0: per query head the mean softmax weight
/// from the last `window` scoring queries, each over its whole causal past (0 for what it cannot
/// see), or, of a method with `ref`, from those of the set that it names (extra_sums); pooled over
/// the task's tokens at positions within kernel/2 of each; then reduced over the group. No scoring
/// query: all 0. Time O(group m kernel) beside the sums. `kernel` is odd.
std::vector<double> snapkv_scores(const Task& task, const Params& params);

/// Bytes that this holds, and the selection by it.
Index snapkv_scores_bytes(const Params& params, const LayerFacts& layer, Index middle);

}  // namespace kvbench
