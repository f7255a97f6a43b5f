// streamingllm: the middle's first n_sink tokens, then the most recent up to B; weight 1.
// [1] Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024,
//     arXiv:2309.17453.
// Departs from [1]: kept keys are not re-rotated to new positions (traces hold post-RoPE keys),
// and under prefill the replay's own uncompressed sinks stand before these. Time O(B).
// Stream: of the sequence's first n_sink tokens those that are no sinks of the protocol, then a
// ring of the last that left the recent window, as in [1]; O(1) per token.
#include <algorithm>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"
#include "algorithms/stream_tokens.hpp"

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

class SinkStream final : public StreamCache {
 public:
  SinkStream(const StreamTask& task, const Params& params)
      : SinkStream(stream_tokens_to_keep(task, params, task.head.pair_bytes()),
                   std::max<Index>(0, params.integer("n_sink") - task.sink)) {}

  void append(Index, Index leaving) override {
    if (leaving >= 0 && static_cast<Index>(sinks_.size()) < sink_count_) {
      sinks_.push_back(leaving);
    } else if (leaving >= 0) {
      last_.push(leaving);
    }
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = sinks_;
    out.held.tokens.insert(out.held.tokens.end(), last_.tokens().begin(), last_.tokens().end());
    return out;
  }

 private:
  // `own`: first tokens beside the protocol's sinks.
  SinkStream(Index kept, Index own) : sink_count_(std::min(kept, own)), last_(kept - sink_count_) {}

  Index sink_count_;
  std::vector<Index> sinks_;
  LastTokens last_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<SinkStream>(task, params);
}

}  // namespace

Method method_streamingllm() {
  MethodInfo info;
  info.name = "streamingllm";
  info.summary = "first n_sink tokens, then the most recent";
  info.source = "Xiao et al., ICLR 2024, arXiv:2309.17453";
  info.departures = "kept keys are not re-rotated to new positions";
  info.params = size_params();
  info.params.push_back(
      integer_param("n_sink", "4", 0, 1e9, "tokens",
                    "leading tokens of the middle that are always kept (stream: of the sequence, "
                    "those counted that --sink keeps)"));
  info.grid = {"n_sink=0,4,16,64"};
  info.sizes = size_names();
  info.keeps_tokens = true;
  return {info, compress, open_stream};
}

}  // namespace kvbench
