// snapkv: the tokens with the largest attention from the last queries, pooled over neighbours.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
// In: window attention [m] of the task's tokens. Out: B tokens of weight 1.
// Time O(m kernel) beside the scores.
#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"

namespace kvbench::method_snapkv {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return hold_top(task, params, snapkv_scores(task, params));
}

}  // namespace

Method make() {
  MethodInfo info = snapkv_info("snapkv", {ref_param()});
  info.family = Family::eviction;
  info.summary = "largest attention from the last scoring queries, pooled over neighbours";
  info.source = "Li et al., NeurIPS 2024, arXiv:2404.14469, section 4";
  info.departures =
      "the observation window is scored like other tokens; one set per KV head, scores reduced "
      "over its query heads";
  info.grid = {"window=32,64,256,1024;kernel=1,5", "window=32,256;reduce=max",
               "window=256;kernel=15", "pool=max"};
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.scoring.front().sets = ref_sets(p);
    return out;
  };
  info.resolve = resolve_ref;
  return {info, compress};
}

}  // namespace kvbench::method_snapkv
