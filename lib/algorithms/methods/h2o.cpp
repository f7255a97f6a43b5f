// h2o: the heaviest tokens by accumulated attention, and the most recent.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048.
// Under prefill the middle is compressed once, by attention over the whole causal past. Under
// stream it is [1]'s greedy eviction (evicting_cache.hpp).
// In: accumulated attention [m] of the task's tokens. Out: B tokens of weight 1.
// Time O(m) beside the scores; stream: O(group (B + recent) d) per token.
#include <algorithm>

#include "algorithms/shared/evicting_cache.hpp"
#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/heavy_recent.hpp"
#include "algorithms/shared/size.hpp"

namespace kvbench::method_h2o {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return hold(split_heavy_recent(task, params, pairs_to_keep(task, params)).kept);
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<EvictingCache>(task, h2o_rules(task, params));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "h2o";
  info.family = Family::eviction;
  info.copies = 1;
  info.matrix_bytes = ref_bytes;
  info.summary = "largest accumulated attention, the rest most recent";
  info.source = "Zhang et al., NeurIPS 2023, arXiv:2306.14048";
  info.departures = "prefill compresses once instead of evicting at each step; one set per KV head";
  info.params = heavy_recent_params({ref_param()});
  info.grid = {"heavy_ratio=0.1,0.25,0.5,0.75,1;reduce=mean,max"};
  info.holds = Holds::tokens;
  info.facts = [](const Params& p) { return JobFacts{.scoring = {{.sets = ref_sets(p)}}}; };
  info.resolve = resolve_ref;
  return {info, compress, open_stream};
}

}  // namespace kvbench::method_h2o
