// keydiff: the tokens whose keys point furthest from the mean direction.
// [1] Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference
//     in Resource-Constrained Environments", 2025, arXiv:2504.15364.
// Score: -<k/|k|, u>, u the mean of the task's normalised keys. Its own length divides every
// cosine alike and is left out, so a mean of zero needs no case. A zero key counts as a zero
// vector. In: K [m, d]. Out: B tokens of weight 1. float64, channels and tokens ascending.
// Time O(m d).
#include <cmath>

#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"

namespace kvbench {
namespace {

double dot(const double* a, const double* b, Index d) {
  double sum = 0.0;
  for (Index t = 0; t < d; ++t) {
    sum = std::fma(a[t], b[t], sum);
  }
  return sum;
}

Compressed compress(const Task& task, const Params& params) {
  const Index d = task.head.d();
  MatrixD keys;
  gather_rows(task.head.k, task.tokens, keys);
  std::vector<double> sum(d, 0.0);
  for (Index i = 0; i < keys.rows(); ++i) {
    double* k = keys.row(i);
    const double norm = std::sqrt(dot(k, k, d));
    for (Index t = 0; t < d; ++t) {
      k[t] = norm > 0.0 ? k[t] / norm : 0.0;
      sum[t] += k[t];
    }
  }
  std::vector<double> scores;
  for (Index i = 0; i < keys.rows(); ++i) {
    scores.push_back(-dot(keys.row(i), sum.data(), d));
  }
  return hold_top(task, params, scores);
}

}  // namespace

Method method_keydiff() {
  MethodInfo info;
  info.name = "keydiff";
  info.summary = "smallest cosine to the mean of the normalised keys";
  info.source = "Park et al., 2025, arXiv:2504.15364";
  info.departures = "the middle is compressed once, not block by block";
  info.params = size_params();
  info.keeps_tokens = true;
  return {info, compress};
}

}  // namespace kvbench
