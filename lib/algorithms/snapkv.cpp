// snapkv: the tokens that the last queries attend to most, scores pooled over neighbours.
// [1] Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
//     arXiv:2404.14469, section 4.
// Departs from [1]: the observation window's own tokens are kept only where the protocol's recent
// window covers them; one selection per KV head, pooled scores reduced over its query heads.
// In: K [m, d] and window attention [m] of the task's tokens. Out: B tokens of weight 1.
// Time O(m kernel) beside the scores.
#include "algorithms/size.hpp"
#include "algorithms/snapkv_scores.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes());
  Compressed out;
  out.held.tokens = keep_top(task.tokens, snapkv_scores(task, params), kept, task.device);
  return out;
}

}  // namespace

Method method_snapkv() {
  MethodInfo info;
  info.name = "snapkv";
  info.summary = "largest attention from the last scoring queries, pooled over neighbours";
  info.source = "Li et al., NeurIPS 2024, arXiv:2404.14469, section 4";
  info.departures =
      "the observation window is scored like other tokens; one set per KV head, scores reduced "
      "over its query heads";
  info.params = size_params();
  const std::vector<ParamSpec> own = snapkv_params();
  info.params.insert(info.params.end(), own.begin(), own.end());
  info.grid = {"window=16,32,64,256,1024;kernel=1,5,15;reduce=mean,max", "window=32,256;pool=max"};
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.scores = true;
  info.query_window = snapkv_window;
  info.check = [](const Params& p) { check_snapkv_params("snapkv", p); };
  return {info, compress};
}

}  // namespace kvbench
