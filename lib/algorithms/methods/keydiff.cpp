// keydiff: the tokens whose keys point farthest from the mean direction.
// [1] Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference
//     in Resource-Constrained Environments", 2025, arXiv:2504.15364.
// Score: -<k/|k|, u>, u the sum of the task's normalised keys; its length does not change the
// order. k/|k| of a zero key is 0.
// In: K [m, d]. Out: B tokens of weight 1. float64, channels and tokens
// ascending. Time O(m d).
#include <cmath>

#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"

namespace kvbench::method_keydiff {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index d = task.head.d();
  // k / |k|, or 0. Not stored: a copy would be as large as the cache.
  std::vector<double> norms, scores;
  const auto unit = [&](std::size_t i, Index t) {
    const double k = task.head.k.row(task.tokens[i])[t];
    return norms[i] > 0.0 ? k / norms[i] : 0.0;
  };
  std::vector<double> sum(d, 0.0);
  for (std::size_t i = 0; i < task.tokens.size(); ++i) {
    norms.push_back(std::sqrt(squared_norm(task.head.k.view().row_span(task.tokens[i]))));
    for (Index t = 0; t < d; ++t) {
      sum[t] += unit(i, t);
    }
  }
  for (std::size_t i = 0; i < task.tokens.size(); ++i) {
    double along = 0.0;
    for (Index t = 0; t < d; ++t) {
      along = std::fma(unit(i, t), sum[t], along);
    }
    scores.push_back(-along);
  }
  return hold_top(task, params, scores);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "keydiff";
  info.family = Family::eviction;
  info.summary = "smallest cosine to the mean of the normalised keys";
  info.source = "Park et al., 2025, arXiv:2504.15364";
  info.departures = "the middle is compressed once, not block by block";
  info.params = size_params();
  info.holds = Holds::tokens;
  return {info, compress};
}

}  // namespace kvbench::method_keydiff
