// local: the last B tokens of the middle, weight 1. Time O(B).
// Stream: the last B that left the recent window; O(1) per token.
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_local {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return hold(task.tokens.last(pairs_to_keep(task, params)));
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<FirstAndLast>(
      0, stream_tokens_to_keep(task, params, task.head.pair_bytes()));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "local";
  info.family = Family::eviction;
  info.summary = "the most recent tokens of the middle";
  info.source = "sliding window attention (Beltagy et al., Longformer, arXiv:2004.05150)";
  info.params = size_params();
  info.holds = Holds::tokens;
  return {info, compress, open_stream};
}

}  // namespace kvbench::method_local
