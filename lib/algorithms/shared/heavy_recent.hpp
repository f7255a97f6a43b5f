// H2O's choice, shared by the methods that evict as it does and merge what they evict: the heaviest
// tokens by accumulated attention outside the most recent, and these.
// [1] Zhang et al., "H2O", NeurIPS 2023, arXiv:2306.14048.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The sizes, `heavy_ratio`, `reduce`, and a method's `own`.
std::vector<ParamSpec> heavy_recent_params(const std::vector<ParamSpec>& own = {});

/// How many of `kept` tokens are the most recent: all but floor(heavy_ratio * kept).
Index recent_of(const Params& params, Index kept);

/// The task's tokens, both ascending.
struct Split {
  std::vector<Index> kept;
  std::vector<Index> evicted;
  std::vector<double> scores;  ///< [n] of all positions: accumulated_scores
};

/// `kept` tokens: the recent_of most recent, and the heaviest of the others.
Split split_heavy_recent(const Task& task, const Params& params, Index kept);

/// Bytes that split_heavy_recent holds, and what it gives of them.
Index split_bytes(const LayerFacts& layer, Index middle);
Index split_result_bytes(const LayerFacts& layer, Index middle);

/// Cosine of each evicted token's key to that of kept[target[i]]; of a zero key 0.
std::vector<double> cosines(MatrixView keys, const Split& split, std::span<const Index> target);

/// `kept` with weight 1: held, but for those whose place `is_changed`; these are made, their rows
/// the trace's, for the caller to change.
Compressed hold_unchanged(const KvHead& head, std::span<const Index> kept,
                          const std::function<bool(std::size_t)>& is_changed);

}  // namespace kvbench
