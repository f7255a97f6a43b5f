// The tokens that H2O, CaM and TOVA hold in a stream, and which of them goes at each step, by the
// rules of streams/eviction.hpp.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048, Algorithm 1.
#pragma once

#include <memory>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/streams.hpp"

namespace kvbench {

/// H2O's greedy eviction in a stream, for the parameters heavy_recent_params: the queries attend to
/// everything held, and of the tokens outside the window the lightest goes, the most recent
/// B - floor(heavy_ratio B) excepted. `after`: of how many kept tokens behind an evicted one the
/// scores are summed. Errors: as stream_tokens_to_keep.
EvictionRules h2o_rules(const StreamTask& task, const Params& params, Index after = 0);

/// Bytes that an EvictingCache of `kept` tokens outside the window holds.
Index evicting_cache_bytes(const LayerFacts& layer, Index kept);

class EvictingCache final : public StreamCache {
 public:
  /// Errors: as Backend::evictions.
  EvictingCache(const StreamTask& task, const EvictionRules& rules)
      : rules_(rules), stream_(task.backend.evictions(task.head, rules)) {}

  /// Position j arrives; returns what goes. Positions come in order, from 0. Throws
  /// std::logic_error where `leaving` is not the token that a window of the rules' size loses, or
  /// -1 for a sink.
  Eviction step(Index j, Index leaving);
  void append(Index j, Index leaving) override { step(j, leaving); }

  /// Tokens held outside the window, ascending; no sinks.
  const std::vector<Index>& tokens() const { return outside_; }
  /// Accumulated scores are state: 4 bytes for each token held, those of the window too (they are
  /// wanted when it leaves), but not for sinks, which have none.
  Index aux_bytes() const;
  /// `diag`: age_mean and age_max of the tokens held outside the window, in tokens that came since.
  Compressed view() const override;

 private:
  EvictionRules rules_;
  std::unique_ptr<EvictionStream> stream_;
  std::vector<Index> outside_;
  Index now_ = 0;   // the position that came last
  Index size_ = 0;  // tokens held, window and all, but no sinks
};

}  // namespace kvbench
