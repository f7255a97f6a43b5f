// knorm: the tokens with the smallest key norms.
// [1] Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
//     EMNLP 2024, arXiv:2406.11430.
// Departs from [1]: every layer is compressed ([1] leaves the first two alone).
// Norms are float32, as [1]'s are: rounded from a float64 sum, channels ascending, so that they do
// not depend on the order of summation. In: K [m, d]. Out: B tokens of weight 1. Time O(m d).
#include <cmath>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"
#include "attention/similarity.hpp"

namespace kvbench {
namespace {

double score(std::span<const float> key) {
  return -static_cast<double>(static_cast<float>(std::sqrt(squared_norm(key))));
}

Compressed compress(const Task& task, const Params& params) {
  std::vector<double> scores;
  scores.reserve(task.tokens.size());
  for (const Index i : task.tokens) {
    scores.push_back(score(task.head.k.view().row_span(i)));
  }
  Compressed out;
  out.held.tokens = keep_top(task.tokens, scores,
                             tokens_to_keep(task, params, task.head.pair_bytes()), task.device);
  return out;
}

}  // namespace

Method method_knorm() {
  MethodInfo info;
  info.name = "knorm";
  info.summary = "smallest key norms";
  info.source = "Devoto et al., EMNLP 2024, arXiv:2406.11430";
  info.departures = "no layer is left uncompressed";
  info.params = size_params();
  info.sizes = size_names();
  info.keeps_tokens = true;
  return {info, compress};
}

}  // namespace kvbench
