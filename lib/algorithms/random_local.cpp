// random-local: floor(B/2) tokens uniformly at random, the other half the most recent; weight 1.
// A baseline of BumbleBee's tables. Time O(m).
// Stream: what falls out of the ring of the most recent enters a reservoir; O(1) per token.
#include <algorithm>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"
#include "algorithms/stream_tokens.hpp"

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

class RandomLocalStream final : public StreamCache {
 public:
  RandomLocalStream(const StreamTask& task, const Params& params)
      : RandomLocalStream(stream_tokens_to_keep(task, params, task.head.pair_bytes()),
                          task.rng.stream("sample")) {}

  void append(Index, Index leaving) override {
    const Index older = leaving >= 0 ? last_.push(leaving) : -1;
    if (older >= 0) {
      sample_.push(older);
    }
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = sample_.tokens();
    std::sort(out.held.tokens.begin(), out.held.tokens.end());
    out.held.tokens.insert(out.held.tokens.end(), last_.tokens().begin(), last_.tokens().end());
    return out;
  }

 private:
  RandomLocalStream(Index kept, RngStream stream)
      : last_(kept - kept / 2), sample_(kept / 2, stream) {}

  LastTokens last_;
  Reservoir sample_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<RandomLocalStream>(task, params);
}

}  // namespace

Method method_random_local() {
  MethodInfo info;
  info.name = "random-local";
  info.summary = "half uniformly at random, half the most recent";
  info.source = "BumbleBee (papers/bumblebee), experiments: baseline";
  info.params = size_params();
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.random = always_random;
  return {info, compress, open_stream};
}

}  // namespace kvbench
