// The tokens that H2O, CaM and TOVA hold in a stream, evicted by the rules of streams/eviction.hpp.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048, Algorithm 1.
#pragma once

#include "algorithms/contract.hpp"
#include "attention/streams.hpp"

namespace kvbench {

/// H2O's greedy eviction with heavy_recent_params: outside the window the token with the least
/// accumulated attention is evicted, except the most recent B - floor(heavy_ratio B). `after`: over
/// how many kept tokens after an evicted one scores are summed. Throws as stream_tokens_to_keep.
EvictionRules h2o_rules(const StreamTask& task, const Params& params, Index after = 0);

class EvictingCache final : public StreamCache {
 public:
  /// Throws as Backend::evictions.
  EvictingCache(const StreamTask& task, const EvictionRules& rules)
      : rules_(rules), stream_(task.backend.evictions(task.head, rules)) {}

  /// Position j arrives, in order from 0; returns the eviction. `leaving` is the token that leaves
  /// the rules' window (-1 for a sink).
  Eviction step(Index j, Index leaving);
  void append(Index j, Index leaving) override { step(j, leaving); }

  /// Tokens held outside the window, ascending, without sinks.
  const std::vector<Index>& tokens() const { return outside_; }
  /// Bytes of accumulated scores: 4 per token held, also in the window, but not for sinks.
  Index aux_bytes() const;
  /// `diag`: age_mean and age_max of the tokens outside the window, in tokens that arrived since.
  Compressed view() const override;

 private:
  EvictionRules rules_;
  std::unique_ptr<EvictionStream> stream_;
  std::vector<Index> outside_;
  Index now_ = 0;   // last position
  Index size_ = 0;  // tokens held, with the window, without sinks
};

}  // namespace kvbench
