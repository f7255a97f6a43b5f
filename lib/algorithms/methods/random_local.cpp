// random-local: floor(B/2) tokens uniformly at random, the others the most recent; weight 1.
// A baseline of BumbleBee's tables. Time O(m).
// Stream: tokens that leave the queue of the most recent enter a reservoir; O(1) per token.
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_random_local {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = pairs_to_keep(task, params);
  const Index drawn = kept / 2;
  const Index recent = kept - drawn;
  RngStream stream = task.rng.stream("sample");
  Compressed out;
  for (const Index i : sample_without_replacement(stream, task.count() - recent, drawn)) {
    out.held.tokens.push_back(task.tokens[i]);
  }
  append_all(out.held.tokens, task.tokens.last(recent));
  return out;
}

class RandomLocalStream final : public TokenStream {
 public:
  RandomLocalStream(const StreamTask& task, const Params& params)
      : RandomLocalStream(stream_tokens_to_keep(task, params, task.head.pair_bytes()),
                          task.rng.stream("sample")) {}

  Compressed view() const override {
    Compressed out = hold(sample_.sorted());
    append_all(out.held.tokens, last_.tokens());
    return out;
  }

 private:
  RandomLocalStream(Index kept, RngStream stream)
      : last_(kept - kept / 2), sample_(kept / 2, stream) {}

  void take(Index token) override {
    const Index older = last_.push(token);
    if (older >= 0) {
      sample_.push(older);
    }
  }

  LastTokens last_;
  Reservoir sample_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "random-local";
  info.family = Family::eviction;
  info.summary = "half uniformly at random, half the most recent";
  info.source =
      "BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for Infinite-Context "
      "Transformers, experiments: baseline";
  info.params = size_params();
  info.holds = Holds::tokens;
  info.facts = [](const Params&) { return JobFacts{.random = true}; };
  return {info, compress, open_as<RandomLocalStream>};
}

}  // namespace kvbench::method_random_local
