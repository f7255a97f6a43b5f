// criticalkv: half of the tokens by SnapKV's scores, the rest by score times the value's output
// norm.
// [1] Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
//     Perspective", 2025, arXiv:2502.03805.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: CriticalKVPress over SnapKVPress.
// The floor(B/2) largest scores, then of the others the largest
//   (score + 1e-4) * mean over the group's query heads h of |W_h v|_1,
// W_h [hidden, dv] the head's columns of the layer's output projection.
// In: V [m, dv], W [hidden, group dv], scores [m]. Out: B tokens of weight 1. float64.
// Time O(group n dv hidden) beside the scores, memory O(256 hidden + dv hidden + group n).
#include <limits>

#include "algorithms/shared/output_norms.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "attention/scores.hpp"

namespace kvbench::method_criticalkv {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = pairs_to_keep(task, params);
  std::vector<double> scores = snapkv_scores(task, params);
  const std::vector<Index> first =
      top_indices(scores, floor_share(params.real("first_share"), kept));
  const std::vector<double>& norms = mean_output_norms(task);
  const double epsilon = params.real("epsilon");
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = (scores[i] + epsilon) * norms[task.tokens[i]];
  }
  for (const Index i : first) {
    scores[i] = std::numeric_limits<double>::max();
  }
  return hold(keep_top(task.tokens, scores, kept));
}

}  // namespace

Method make() {
  MethodInfo info = snapkv_info(
      "criticalkv",
      {real_param("first_share", "0.5", 0, 1, "share of the kept tokens",
                  "tokens kept by score alone, rounded down; 1: snapkv"),
       real_param("epsilon", "0.0001", 0, 1e6, "",
                  "added to the score before the product; larger gives values more influence")});
  info.family = Family::eviction;
  info.summary = "half by SnapKV's scores, the rest by score times the value's output norm";
  info.source = "Feng et al., 2025, arXiv:2502.03805; NVIDIA/kvpress 8bb29b9";
  info.departures = "the first half is rounded down, to none for B = 1; SnapKV's departures";
  info.grid = {"first_share=0.25,0.5,0.75;window=32,256;kernel=1,5"};
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.o_proj = true;
    return out;
  };
  info.resolve = resolve_projection;
  return {info, compress};
}

}  // namespace kvbench::method_criticalkv
