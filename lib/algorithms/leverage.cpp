// leverage: the tokens whose keys, before their rotation, have the largest statistical leverage:
// those that lie outside what the other keys span. Looks at no query.
// [1] Chari, Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate
//     Leverage Scores", 2025, arXiv:2507.08143.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: LeverageScorePress.
// Keys are un-rotated by the trace's rotary tables, centred over the task's tokens, multiplied by a
// Gaussian sketch of 48 columns, one per KV head and seed, and scored by
//   x' (X'X + 1e-2 I)^-1 x.
// sketch=0 leaves the sketch out. Departs from [2]: it centres over the middle ([2]: over the whole
// prompt), in float64 ([2]: float32).
// In: K [m, d], rotary tables. Out: B tokens of weight 1. Time O(m d w + m w^2), w = sketch or d.
#include "algorithms/leverage_scores.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes());
  const std::vector<double> scores =
      leverage_scores(unrotated_keys("leverage", task, task.tokens), params.integer("sketch"),
                      task.rng.stream("sketch"));
  Compressed out;
  out.held.tokens = keep_top(task.tokens, scores, kept, task.device);
  return out;
}

std::map<std::string, std::string> resolve(const Params&, const LayerFacts& layer) {
  require_rope_tables("leverage", layer);
  return {};
}

}  // namespace

Method method_leverage() {
  MethodInfo info;
  info.name = "leverage";
  info.summary = "largest leverage of the keys before their rotation, through a Gaussian sketch";
  info.source = "Chari and Van Durme, 2025, arXiv:2507.08143; NVIDIA/kvpress 8bb29b9";
  info.departures = "keys are centred over the middle (kvpress: over all tokens), in float64";
  info.params = size_params();
  info.params.push_back(sketch_param());
  info.grid = {"sketch=0,48"};
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.reads_rope = true;
  info.resolve = resolve;
  info.random = draws_sketch;
  return {info, compress};
}

}  // namespace kvbench
