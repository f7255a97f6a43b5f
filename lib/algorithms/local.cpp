// local: the last B tokens of the middle, weight 1. Time O(B).
// Stream: the last B that left the recent window, a ring; O(1) per token.
#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"
#include "algorithms/stream_tokens.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  Compressed out;
  out.held.tokens = keep_last(task.tokens, tokens_to_keep(task, params, task.head.pair_bytes()));
  return out;
}

class LocalStream final : public StreamCache {
 public:
  LocalStream(const StreamTask& task, const Params& params)
      : last_(stream_tokens_to_keep(task, params, task.head.pair_bytes())) {}

  void append(Index, Index leaving) override {
    if (leaving >= 0) {
      last_.push(leaving);
    }
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens.assign(last_.tokens().begin(), last_.tokens().end());
    return out;
  }

 private:
  LastTokens last_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<LocalStream>(task, params);
}

}  // namespace

Method method_local() {
  MethodInfo info;
  info.name = "local";
  info.summary = "the most recent tokens of the middle";
  info.source = "sliding window attention (Beltagy et al., Longformer, arXiv:2004.05150)";
  info.params = size_params();
  info.sizes = size_names();
  info.keeps_tokens = true;
  return {info, compress, open_stream};
}

}  // namespace kvbench
