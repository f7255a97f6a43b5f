// streamingllm: the middle's first n_sink tokens, then the most recent up to B; weight 1.
// [1] Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024,
//     arXiv:2309.17453.
// Departs from [1]: kept keys are not re-rotated to new positions (traces hold post-RoPE keys),
// and the replay's own uncompressed sinks stand before these. Time O(B).
#include <algorithm>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes());
  const Index sinks = std::min(kept, params.integer("n_sink"));
  Compressed out;
  out.held.tokens.assign(task.tokens.begin(), task.tokens.begin() + sinks);
  const std::vector<Index> recent = keep_last(task.tokens, kept - sinks);
  out.held.tokens.insert(out.held.tokens.end(), recent.begin(), recent.end());
  return out;
}

}  // namespace

Method method_streamingllm() {
  MethodInfo info;
  info.name = "streamingllm";
  info.summary = "first n_sink tokens, then the most recent";
  info.source = "Xiao et al., ICLR 2024, arXiv:2309.17453";
  info.departures = "kept keys are not re-rotated to new positions";
  info.params = size_params();
  info.params.push_back(integer_param("n_sink", "4", 0, 1e9, "tokens",
                                      "leading tokens of the middle that are always kept"));
  info.sizes = size_names();
  return {info, compress};
}

}  // namespace kvbench
