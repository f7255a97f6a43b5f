// H2O's greedy eviction in a stream, shared by h2o and by cam, which merges what it evicts.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048, Algorithm 1.
//
// At each step the newcomer joins, the queries attend to everything held (sinks and recent window
// included) and add their weights to the scores, and if the tokens outside the window are then more
// than B the lightest of them goes, the most recent B - floor(heavy_ratio B) excepted; of equally
// light ones the latest. Sinks never go and have no score. Scores go with their token; those of the
// window are kept for when it leaves, and count: 4 bytes for each token held but the sinks.
#pragma once

#include <algorithm>

#include "algorithms/evicting_cache.hpp"
#include "algorithms/scoring.hpp"
#include "algorithms/stream_tokens.hpp"

namespace kvbench {

class H2oEviction {
 public:
  static constexpr Index kScoreBytes = 4;

  /// `after`: of how many kept tokens behind an evicted one the scores are summed. Errors: as
  /// stream_tokens_to_keep, and as DeviceHead::evictions.
  H2oEviction(const StreamTask& task, const Params& params, Index after = 0)
      : cache_(task, rules(task, params, after)) {}

  /// One step of the stream, and what it evicts.
  Eviction step(Index j, Index leaving) { return cache_.step(j, leaving); }

  /// Tokens held outside the window, ascending.
  const std::vector<Index>& tokens() const { return cache_.tokens(); }

  Index aux_bytes() const { return kScoreBytes * cache_.size(); }

 private:
  static EvictionRules rules(const StreamTask& task, const Params& params, Index after) {
    EvictionRules out;
    out.window = task.recent;
    out.sink = task.sink;
    out.kept = stream_tokens_to_keep(task, params, task.head.pair_bytes() + kScoreBytes,
                                     kScoreBytes * stream_window(task));
    out.protected_recent = out.kept - floor_share(params.real("heavy_ratio"), out.kept);
    out.reduce = reduce_of(params);
    out.after = after;
    return out;
  }

  EvictingCache cache_;
};

}  // namespace kvbench
