// adakv: SnapKV's scores compete for a layer's budget.
// [1] Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
//     Efficient LLM Inference", 2024, arXiv:2407.11550, Algorithm 1 on SnapKV.
// Each head keeps its best floor(floor * B) tokens. The rest of the layer's Hkv B tokens are the
// largest remaining scores of all heads; ties go to the lowest position, then head.
// Survey: scores [m] and positions [m]. A head without a share is treated as a layer of its own.
// Time O(Hkv m log m) beside the scores.
#include "algorithms/shared/pooled_budget.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"

namespace kvbench::method_adakv {
namespace {

Survey survey(const Task& task, const Params& params) {
  return competing(task, pairs_to_keep(task, params), snapkv_scores(task, params));
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  return pooled_shares(surveys,
                       [&](Index tokens) { return floor_share(params.real("floor"), tokens); });
}

Compressed compress(const Task& task, const Params& params) {
  const Index kept = share_of(task, params, survey, share).tokens;
  return hold(keep_top(task.tokens, snapkv_scores(task, params), kept));
}

}  // namespace

Method make() {
  MethodInfo info =
      snapkv_info("adakv", {real_param("floor", "0.2", 0, 1, "share of the head's equal part",
                                       "each head's best tokens that always stay, rounded down; 1: "
                                       "equal parts, which is snapkv")});
  info.family = Family::eviction;
  info.summary = "SnapKV's scores compete for a layer's budget";
  info.source = "Feng et al., 2024, arXiv:2407.11550, Algorithm 1";
  info.departures =
      "each head first keeps its safe part, the rest goes by score (the paper mixes two counts); "
      "heads are KV heads; SnapKV's departures";
  info.grid = {"floor=0,0.2,0.5;window=32,256;kernel=1,5"};
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.scope = Scope::layer;
    return out;
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_adakv
