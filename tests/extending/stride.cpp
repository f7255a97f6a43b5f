// stride: B evenly spaced tokens of the middle, each with weight m/B. What uniform sampling does on
// average, without its variance.
// Source: systematic sampling (Madow and Madow, Annals of Mathematical Statistics 15, 1944).
// In: K [m, d], V [m, dv] of the task's tokens. Out: B of them, one common weight. Time O(B).
#include "algorithms/shared/size.hpp"

namespace kvbench::method_stride {
namespace {

constexpr Index kWeightBytes = 4;  // one float32 for all tokens

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes(), kWeightBytes);
  const double start = params.real("phase");
  Compressed out;
  for (Index i = 0; i < kept; ++i) {
    const double place = (static_cast<double>(i) + start) * static_cast<double>(task.count()) /
                         static_cast<double>(kept);
    out.held.tokens.push_back(task.tokens[static_cast<std::size_t>(place)]);
  }
  if (kept > 0) {
    out.held.common =
        static_cast<float>(static_cast<double>(task.count()) / static_cast<double>(kept));
    out.aux_bytes = kWeightBytes;
  }
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "stride";
  info.family = Family::sampling;
  info.summary = "evenly spaced tokens, weight m/B";
  info.source = "systematic sampling (Madow and Madow, 1944)";
  info.params = size_params({real_param("phase", "0.5", 0, 0.999, "strides",
                                        "place of the kept token inside its stride")});
  info.facts = [](const Params&) { return JobFacts{.weights = {0, kWeightBytes}}; };
  return {info, compress};
}

}  // namespace kvbench::method_stride
