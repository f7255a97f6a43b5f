// leverage: the tokens whose un-rotated keys have the largest statistical leverage, those outside
// the span of the other keys. Reads no query.
// [1] Chari, Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate
//     Leverage Scores", 2025, arXiv:2507.08143.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: LeverageScorePress.
// Scores x' (X'X + 1e-2 I)^-1 x, X the keys un-rotated by the trace's tables, centred over the
// task's tokens, times a Gaussian sketch per KV head and seed.
// In: K [m, d], rotary tables. Out: B tokens of weight 1. Time O(m d w + m w^2), w = sketch or d.
#include "algorithms/shared/leverage_scores.hpp"
#include "algorithms/shared/size.hpp"

namespace kvbench::method_leverage {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return hold_top(task, params, leverage_scores(task, task.tokens, params));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "leverage";
  info.family = Family::eviction;
  info.copies = 2;
  info.matrix_bytes = leverage_bytes;
  info.summary = "largest leverage of un-rotated keys, through a Gaussian sketch";
  info.source = "Chari and Van Durme, 2025, arXiv:2507.08143; NVIDIA/kvpress 8bb29b9";
  info.departures = "keys are centred over the middle (kvpress: over all tokens), in float64";
  info.params = size_params({sketch_param()});
  info.grid = {"sketch=0,48"};
  info.holds = Holds::tokens;
  info.resolve = require_rope_tables;
  info.facts = [](const Params& p) { return JobFacts{.rope = true, .random = draws_sketch(p)}; };
  return {info, compress};
}

}  // namespace kvbench::method_leverage
