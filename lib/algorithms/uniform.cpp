// uniform: B tokens uniformly without replacement, each with weight m/B, so that both sums are
// unbiased. The baseline of BalanceKV's figure 2.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", section 4.1.
// One weight is stored for all tokens (4 bytes). Time O(m).
#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index weight_bytes = 4;
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes(), weight_bytes);
  RngStream stream = task.rng.stream("sample");
  Compressed out;
  for (const Index i : sample_without_replacement(stream, task.count(), kept)) {
    out.held.tokens.push_back(task.tokens[static_cast<std::size_t>(i)]);
  }
  if (kept > 0) {
    out.held.common =
        static_cast<float>(static_cast<double>(task.count()) / static_cast<double>(kept));
    out.aux_bytes = weight_bytes;
  }
  return out;
}

}  // namespace

Method method_uniform() {
  MethodInfo info;
  info.name = "uniform";
  info.summary = "uniform sampling without replacement, weight m/B";
  info.source = "BalanceKV (papers/balancekv), section 4.1: the comparison baseline";
  info.params = size_params();
  info.sizes = size_names();
  info.random = always_random;
  return {info, compress};
}

}  // namespace kvbench
