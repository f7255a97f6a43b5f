// random-local: floor(B/2) tokens uniformly at random, the other half the most recent; weight 1.
// A baseline of BumbleBee's tables. Time O(m).
#include <algorithm>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes());
  const Index drawn = kept / 2;
  const Index older = task.count() - (kept - drawn);
  RngStream stream = task.rng.stream("sample");
  Compressed out;
  for (const Index i : sample_without_replacement(stream, older, drawn)) {
    out.held.tokens.push_back(task.tokens[static_cast<std::size_t>(i)]);
  }
  const std::vector<Index> recent = keep_last(task.tokens, kept - drawn);
  out.held.tokens.insert(out.held.tokens.end(), recent.begin(), recent.end());
  return out;
}

}  // namespace

Method method_random_local() {
  MethodInfo info;
  info.name = "random-local";
  info.summary = "half uniformly at random, half the most recent";
  info.source = "BumbleBee (papers/bumblebee), experiments: baseline";
  info.params = size_params();
  info.sizes = size_names();
  info.random = always_random;
  return {info, compress};
}

}  // namespace kvbench
