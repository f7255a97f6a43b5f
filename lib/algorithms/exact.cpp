// exact: every token, weight 1. The memory and time reference; its error is rounding alone.
// Stream: keeps whatever leaves the recent window and is no sink. Time O(m), memory all of it.
#include "algorithms/contract.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params&) {
  Compressed out;
  out.held.tokens.assign(task.tokens.begin(), task.tokens.end());
  return out;
}

class ExactStream final : public StreamCache {
 public:
  void append(Index, Index leaving) override {
    if (leaving >= 0) {
      tokens_.push_back(leaving);
    }
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = tokens_;
    return out;
  }

 private:
  std::vector<Index> tokens_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask&, const Params&) {
  return std::make_unique<ExactStream>();
}

}  // namespace

Method method_exact() {
  MethodInfo info;
  info.name = "exact";
  info.summary = "the whole cache: the reference for memory and time";
  info.source = "definition of causal attention";
  return {info, compress, open_stream};
}

}  // namespace kvbench
