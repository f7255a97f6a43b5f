// knorm: the tokens with the smallest key norms.
// [1] Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
//     EMNLP 2024, arXiv:2406.11430.
// Norms are float32, as [1]'s, rounded from a float64 sum over ascending channels.
// In: K [m, d]. Out: B tokens of weight 1. Time O(m d).
#include <cmath>

#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"

namespace kvbench::method_knorm {
namespace {

Compressed compress(const Task& task, const Params& params) {
  std::vector<double> scores;
  for (const Index i : task.tokens) {
    const double norm = std::sqrt(squared_norm(task.head.k.view().row_span(i)));
    scores.push_back(-static_cast<double>(static_cast<float>(norm)));
  }
  return hold_top(task, params, scores);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "knorm";
  info.family = Family::eviction;
  info.summary = "smallest key norms";
  info.source = "Devoto et al., EMNLP 2024, arXiv:2406.11430";
  info.departures = "no layer is left uncompressed";
  info.params = size_params();
  info.holds = Holds::tokens;
  return {info, compress};
}

}  // namespace kvbench::method_knorm
