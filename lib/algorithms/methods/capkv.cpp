// capkv: the tokens that add most to the information that the cache can carry, as leverage scores
// of values weighted by relevance to future queries.
// [1] Yang et al., "Rethinking KV Cache Eviction via a Unified Information-Theoretic Objective",
//     2026, arXiv:2604.25975.
// [2] Its code in NVIDIA/kvpress, release 0.5.5: CapPress.
// Per query head: mu = R mean of the un-rotated scoring queries from n_skip on, R the mean of the
// rotations to the n_future positions after the prompt (future_queries.hpp);
//   w = exp(tau (cos(k, mu) - its maximum)), A = I + sum (w + 1e-6) v v', score = w v' A^-1 v,
// sum and maximum over the task's tokens; then reduced over the group. Without scoring queries, or
// for a zero key, the cosine is 0. If A is singular in float64 (norms beyond 1e7, say), I is
// multiplied by a power of ten (ridge_factor).
// In: K [m, d], V [m, dv], Q [N, d]. Out: B tokens of weight 1. float64, fixed order. Time O(group
// (N d + m (d + dv^2))), memory O(N d + m (dv + group)).
#include <algorithm>
#include <cmath>

#include "algorithms/shared/future_queries.hpp"
#include "algorithms/shared/leverage_scores.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "core/math.hpp"

namespace kvbench::method_capkv {
namespace {

constexpr double kWeightFloor = 1e-6;  // [2]'s epsilon
constexpr double kNormFloor = 1e-12;   // of normalised vectors, as in [2]
constexpr Index kSlab = 256;           // values per block

// [tokens]: w.
std::vector<double> relevance(const Task& task, std::span<const double> mu, double tau) {
  double square = 0.0;
  for (const double x : mu) {
    square = std::fma(x, x, square);
  }
  const double length = std::max(std::sqrt(square), kNormFloor);
  std::vector<double> out;
  for (const Index i : task.tokens) {
    const std::span<const float> key = task.head.k.view().row_span(i);
    double along = 0.0;
    for (std::size_t t = 0; t < key.size(); ++t) {
      along = std::fma(mu[t], static_cast<double>(key[t]), along);
    }
    const double norm = std::max(std::sqrt(squared_norm(key)), kNormFloor);
    out.push_back(std::clamp(along / (norm * length), -1.0, 1.0));
  }
  const double largest = out.empty() ? 0.0 : *std::ranges::max_element(out);
  for (double& x : out) {
    x = exp_shared(tau * (x - largest));
  }
  return out;
}

// sum (w + 1e-6) v v', the upper triangle.
MatrixD weighted_gram(const MatrixD& values, std::span<const double> weights) {
  MatrixD sum(values.cols(), values.cols());
  MatrixD rows, rows_t, part;
  for (Index b = 0; b < values.rows(); b += kSlab) {
    rows.resize(std::min(kSlab, values.rows() - b), values.cols());
    for (Index i = 0; i < rows.rows(); ++i) {
      const double root = std::sqrt(weights[b + i] + kWeightFloor);
      std::transform(values.row(b + i), values.row(b + i) + values.cols(), rows.row(i),
                     [root](double x) { return root * x; });
    }
    transpose(rows, rows_t);
    inner_products(rows_t, rows, part, true);
    for (Index i = 0; i < sum.rows(); ++i) {
      for (Index j = i; j < sum.cols(); ++j) {
        sum.row(i)[j] += part.row(i)[j];
      }
    }
  }
  return sum;
}

Compressed compress(const Task& task, const Params& params) {
  const FutureQueries queries(task, params);
  MatrixD values;
  gather_rows(task.head.v, task.tokens, values);
  std::vector<std::vector<double>> heads;
  for (Index g = 0; g < task.head.group(); ++g) {
    MatrixD past = queries.past(g);
    std::vector<double> mu = center_rows(past);
    queries.turn(mu.data());
    const std::vector<double> weights = relevance(task, mu, params.real("tau"));
    std::vector<double>& scores = heads.emplace_back(
        inverse_forms(ridge_factor(weighted_gram(values, weights), 1.0), values));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] *= weights[i];
    }
  }
  return hold_top(task, params, reduce_group(heads, reduce_of(params)));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "capkv";
  info.family = Family::eviction;
  info.copies = 2;
  info.summary =
      "largest leverage of values, weighted by the key's cosine to the mean future query";
  info.source = "Yang et al., 2026, arXiv:2604.25975; NVIDIA/kvpress 0.5.5";
  info.departures =
      "maximum and sum over the middle (kvpress: over all tokens but its 4 sinks); cosines, as in "
      "kvpress (the paper: inner products); rope=post is not the method: the mean of rotated "
      "queries";
  info.params =
      size_params(joined({future_params(),
                          {real_param("tau", "5", 0, 100, "",
                                      "sharpness of the weights; larger favours keys along the "
                                      "mean query, 0: all weights are 1"),
                           reduce_param()}}));
  info.grid = {"tau=0,1,2,5,10,20", "n_future=128", "reduce=max"};
  info.holds = Holds::tokens;
  info.facts = future_facts;
  info.resolve = resolve_future;
  return {info, compress};
}

}  // namespace kvbench::method_capkv
