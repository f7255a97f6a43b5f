// uniform: B tokens uniformly without replacement, each with weight m/B, so that both sums are
// unbiased. The baseline of BalanceKV's figure 2.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", section 4.1.
// One weight is stored for all tokens (4 bytes). Time O(m).
// Stream: a reservoir of B over the tokens that left the recent window, weight arrivals/B (arrivals
// follow from the position). O(1) per token.
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_uniform {
namespace {

constexpr Index kWeightBytes = 4;

// `tokens` as a sample of `count`.
Compressed sample_of(std::span<const Index> tokens, Index count) {
  Compressed out = hold(tokens);
  if (!tokens.empty()) {
    out.held.common =
        static_cast<float>(static_cast<double>(count) / static_cast<double>(tokens.size()));
    out.aux_bytes = kWeightBytes;
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  if (task.budget_bytes && *task.budget_bytes < kWeightBytes) {
    return {};  // the weight does not fit
  }
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes(), kWeightBytes);
  RngStream stream = task.rng.stream("sample");
  std::vector<Index> tokens = sample_without_replacement(stream, task.count(), kept);
  for (Index& i : tokens) {
    i = task.tokens[i];
  }
  return sample_of(tokens, task.count());
}

class UniformStream final : public TokenStream {
 public:
  UniformStream(const StreamTask& task, const Params& params)
      : sample_(stream_tokens_to_keep(task, params, task.head.pair_bytes(), kWeightBytes),
                task.rng.stream("sample")) {}

  Compressed view() const override { return sample_of(sample_.sorted(), sample_.arrivals()); }

 private:
  void take(Index token) override { sample_.push(token); }

  Reservoir sample_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "uniform";
  info.family = Family::sampling;
  info.summary = "uniform sampling without replacement, weight m/B";
  info.source =
      "BalanceKV: KV Cache Compression through Discrepancy Theory, section 4.1: the comparison "
      "baseline";
  info.params = size_params();
  info.holds = Holds::weighted_tokens;
  info.facts = [](const Params&) { return JobFacts{.random = true, .weights = {0, kWeightBytes}}; };
  return {info, compress, open_as<UniformStream>};
}

}  // namespace kvbench::method_uniform
