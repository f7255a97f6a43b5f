// exact: every token, weight 1. The memory and time reference; its error is rounding alone.
// Time O(m), memory all of it.
#include "algorithms/contract.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params&) {
  Compressed out;
  out.held.tokens.assign(task.tokens.begin(), task.tokens.end());
  return out;
}

}  // namespace

Method method_exact() {
  MethodInfo info;
  info.name = "exact";
  info.summary = "the whole cache: the reference for memory and time";
  info.source = "definition of causal attention";
  return {info, compress};
}

}  // namespace kvbench
