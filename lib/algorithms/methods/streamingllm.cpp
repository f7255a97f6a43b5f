// streamingllm: the middle's first n_sink tokens, then the most recent up to B; weight 1.
// [1] Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024,
//     arXiv:2309.17453.
// Under prefill they follow the protocol's sinks. Stream, as in [1]: the sequence's first n_sink
// tokens, less the protocol's sinks, then the last that left the recent window. Time O(B), stream
// O(1) per token.
#include <algorithm>

#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_streamingllm {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = pairs_to_keep(task, params);
  const Index sinks = std::min(kept, params.integer("n_sink"));
  Compressed out = hold(task.tokens.first(sinks));
  append_all(out.held.tokens, task.tokens.last(kept - sinks));
  return out;
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<FirstAndLast>(
      std::max<Index>(0, params.integer("n_sink") - task.sink),
      stream_tokens_to_keep(task, params, task.head.pair_bytes()));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "streamingllm";
  info.family = Family::eviction;
  info.summary = "first n_sink tokens, then the most recent";
  info.source = "Xiao et al., ICLR 2024, arXiv:2309.17453";
  info.departures = "kept keys are not re-rotated to new positions";
  info.params = size_params(
      {integer_param("n_sink", "4", 0, 1e9, "tokens",
                     "leading tokens of the middle that are always kept (stream: of the sequence, "
                     "--sink included); larger keeps fewer recent ones")});
  info.grid = {"n_sink=0,4,16,64"};
  info.holds = Holds::tokens;
  return {info, compress, open_stream};
}

}  // namespace kvbench::method_streamingllm
