// h2o: the heaviest tokens by accumulated attention, and the most recent.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048.
// Departs from [1]: under prefill the middle is compressed once, from attention over the whole
// causal past, not by greedy eviction at each step; one selection per KV head, scores reduced over
// its query heads. Under stream it is [1]'s greedy eviction (h2o_eviction.hpp).
// In: K [m, d] and accumulated attention [m] of the task's tokens. Out: B tokens of weight 1. The
// scores are not needed once the selection is made, so they are not part of the cache.
// Time O(m) beside the scores; stream: O(group (B + recent) d) per token.
#include "algorithms/h2o_eviction.hpp"
#include "algorithms/scoring.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes());
  const Index heavy = floor_share(params.real("heavy_ratio"), kept);
  const std::vector<Index> recent = keep_last(task.tokens, kept - heavy);
  const auto older = task.tokens.first(task.tokens.size() - recent.size());
  const std::vector<double> scores =
      take_scores(reduce_group(task.scores->sums(task.scoring), reduce_of(params)), older);
  Compressed out;
  out.held.tokens = keep_top(older, scores, heavy, task.device);
  out.held.tokens.insert(out.held.tokens.end(), recent.begin(), recent.end());
  return out;
}

class H2oStream final : public StreamCache {
 public:
  H2oStream(const StreamTask& task, const Params& params) : eviction_(task, params) {}

  void append(Index j, Index leaving) override { eviction_.step(j, leaving); }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = eviction_.tokens();
    out.aux_bytes = eviction_.aux_bytes();
    return out;
  }

 private:
  H2oEviction eviction_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<H2oStream>(task, params);
}

}  // namespace

Method method_h2o() {
  MethodInfo info;
  info.name = "h2o";
  info.summary = "largest accumulated attention, the rest most recent";
  info.source = "Zhang et al., NeurIPS 2023, arXiv:2306.14048";
  info.departures = "prefill compresses once instead of evicting at each step; one set per KV head";
  info.params = size_params();
  info.params.push_back(
      real_param("heavy_ratio", "0.5", 0, 1, "share of the kept tokens",
                 "heavy hitters, rounded down to whole tokens; the others are the most recent"));
  info.params.push_back(reduce_param());
  info.grid = {"heavy_ratio=0.1,0.25,0.5,0.75,1;reduce=mean,max"};
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.scores = true;
  return {info, compress, open_stream};
}

}  // namespace kvbench
