// H2O's choice of tokens, shared by methods that evict as H2O and merge the evicted tokens.
// [1] Zhang et al., "H2O", NeurIPS 2023, arXiv:2306.14048.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The sizes, `heavy_ratio`, `reduce`, and `own`.
std::vector<ParamSpec> heavy_recent_params(const std::vector<ParamSpec>& own = {});

/// Recent tokens among `kept`: kept - floor(heavy_ratio * kept).
Index recent_of(const Params& params, Index kept);

struct Split {
  std::vector<Index> kept;
  std::vector<Index> evicted;
  std::vector<double> scores;  ///< [n] of all positions: accumulated_scores
};

/// Keeps the recent_of most recent tokens, and the heaviest of the others by accumulated attention.
Split split_heavy_recent(const Task& task, const Params& params, Index kept);

/// Cosine of each evicted key to that of kept[target[i]]; 0 for a zero key.
std::vector<double> cosines(MatrixView keys, const Split& split, std::span<const Index> target);

/// `kept` with weight 1. Tokens with `is_changed` (by index in `kept`) are made entries, copies for
/// the caller to change.
Compressed hold_unchanged(const KvHead& head, std::span<const Index> kept,
                          const std::function<bool(std::size_t)>& is_changed);

}  // namespace kvbench
