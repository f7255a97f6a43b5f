// uniform: B tokens uniformly without replacement, each with weight m/B, so that both sums are
// unbiased. The baseline of BalanceKV's figure 2.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", section 4.1.
// One weight is stored for all tokens (4 bytes). Time O(m).
// Stream: a reservoir of B over what left the recent window and is no sink, weight arrivals/B
// (arrivals follow from the position); at any moment a uniform subset. O(1) per token.
#include <algorithm>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"
#include "algorithms/stream_tokens.hpp"

namespace kvbench {
namespace {

constexpr Index kWeightBytes = 4;

Compressed compress(const Task& task, const Params& params) {
  if (task.budget_bytes && *task.budget_bytes < kWeightBytes) {
    return {};  // not even the weight fits: nothing is kept, and nothing is held
  }
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes(), kWeightBytes);
  RngStream stream = task.rng.stream("sample");
  Compressed out;
  for (const Index i : sample_without_replacement(stream, task.count(), kept)) {
    out.held.tokens.push_back(task.tokens[static_cast<std::size_t>(i)]);
  }
  if (kept > 0) {
    out.held.common =
        static_cast<float>(static_cast<double>(task.count()) / static_cast<double>(kept));
    out.aux_bytes = kWeightBytes;
  }
  return out;
}

class UniformStream final : public StreamCache {
 public:
  UniformStream(const StreamTask& task, const Params& params)
      : sample_(stream_tokens_to_keep(task, params, task.head.pair_bytes(), kWeightBytes),
                task.rng.stream("sample")) {}

  void append(Index, Index leaving) override {
    if (leaving >= 0) {
      sample_.push(leaving);
    }
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = sample_.tokens();
    std::sort(out.held.tokens.begin(), out.held.tokens.end());
    if (!out.held.tokens.empty()) {
      out.held.common = static_cast<float>(static_cast<double>(sample_.arrivals()) /
                                           static_cast<double>(out.held.tokens.size()));
      out.aux_bytes = kWeightBytes;
    }
    return out;
  }

 private:
  Reservoir sample_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<UniformStream>(task, params);
}

}  // namespace

Method method_uniform() {
  MethodInfo info;
  info.name = "uniform";
  info.summary = "uniform sampling without replacement, weight m/B";
  info.source = "BalanceKV (papers/balancekv), section 4.1: the comparison baseline";
  info.params = size_params();
  info.sizes = size_names();
  info.selects_tokens = true;
  info.random = always_random;
  return {info, compress, open_stream};
}

}  // namespace kvbench
