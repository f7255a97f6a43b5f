// local: the last B tokens of the middle, weight 1. Time O(B).
#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  Compressed out;
  out.held.tokens = keep_last(task.tokens, tokens_to_keep(task, params, task.head.pair_bytes()));
  return out;
}

}  // namespace

Method method_local() {
  MethodInfo info;
  info.name = "local";
  info.summary = "the most recent tokens of the middle";
  info.source = "sliding window attention (Beltagy et al., Longformer, arXiv:2004.05150)";
  info.params = size_params();
  info.sizes = size_names();
  return {info, compress};
}

}  // namespace kvbench
