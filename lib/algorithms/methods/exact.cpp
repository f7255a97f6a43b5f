// exact: every token, weight 1. The memory and time reference; its error is rounding alone.
// Time O(m), memory all of it.
#include "algorithms/shared/fixed_reads.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_exact {
namespace {

Compressed compress(const Task& task, const Params&) {
  return hold(task.tokens);
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params&) {
  return std::make_unique<FirstAndLast>(task.head.n(), task.head.n());
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "exact";
  info.family = Family::reference;
  info.holds = Holds::placed;
  info.summary = "the whole cache: the reference for memory and time";
  info.source = "definition of causal attention";
  info.sizes = {};
  Method out{info, compress, open_stream};
  out.open_reads = [](const Task& task, const Params& params) {
    return std::make_unique<FixedReads>(compress(task, params));
  };
  return out;
}

}  // namespace kvbench::method_exact
