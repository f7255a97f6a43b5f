// expected-attention: the tokens with the largest expected attention of a Gaussian query, times
// |v|.
// [1] Devoto, Jeblick, Jegou, "Expected Attention: KV Cache Compression by Estimating Attention
//     from Future Queries Distribution", 2025, arXiv:2510.00636.
// [2] Its public code: ExpectedAttentionPress of NVIDIA/kvpress, commit 8bb29b9.
// Per query head: mean m and covariance C (over N) of the un-rotated scoring queries from n_skip
// on, R the mean of the rotations to the n_future positions after the prompt, mu = R m, Sigma = R C
// R':
//   E exp(s<q,k>) = exp(s mu.k + s^2 k'Sigma k / 2),
// softmax over the task's tokens and the sink logit, reduced over the group, times |v|. Logarithms
// rank alike and do not underflow. Without scoring queries mu and Sigma are 0. rope=post: m and C
// of the queries as stored, R = 1.
// In: K [m, d], V [m, dv], Q [N, d]. Out: B tokens of weight 1. float64, fixed order. Time O(group
// (N + m) d^2), memory O(N d + group m).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "algorithms/shared/future_queries.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/math.hpp"

namespace kvbench::method_expected_attention {
namespace {

constexpr std::size_t kSlab = 256;  // keys per block
constexpr double kLowest = std::numeric_limits<double>::lowest();

// Mean [1, d] and covariance [d, d] of queries.
struct Gaussian {
  MatrixD mean, covariance;
};

// Of the rows of x. Centres x.
Gaussian fit(MatrixD& x) {
  const Index d = x.cols();
  const auto count = static_cast<double>(std::max<Index>(1, x.rows()));
  Gaussian out;
  MatrixD x_t;
  const std::vector<double> mean = center_rows(x);
  out.mean.resize(1, d);
  std::copy(mean.begin(), mean.end(), out.mean.data());
  transpose(x, x_t);
  inner_products(x_t, x, out.covariance);
  for (Index t = 0; t < d * d; ++t) {
    out.covariance.data()[t] /= count;
  }
  return out;
}

// mean := R mean, covariance := R covariance R'.
void turn(const FutureQueries& queries, Gaussian& query) {
  queries.turn(query.mean.data());
  const Index d = query.covariance.rows();
  for (Index i = 0; i < d; ++i) {
    queries.turn(query.covariance.row(i));  // columns: C R'
  }
  for (Index j = 0; j < d; ++j) {
    queries.turn(query.covariance.data() + j, d);  // rows: R (C R')
  }
}

// log of the softmax over the task's tokens, and the sink logit (-inf: none), of
// s mu.k + s^2 k'Sigma k / 2.
std::vector<double> log_attention(const Task& task, const Gaussian& query, double sink) {
  const double scale = task.head.scale;
  const double* mean = query.mean.data();
  std::vector<double> out;
  double shift = kLowest;
  MatrixD keys, spread;
  for (std::size_t begin = 0; begin < task.tokens.size(); begin += kSlab) {
    gather_rows(task.head.k,
                task.tokens.subspan(begin, std::min(kSlab, task.tokens.size() - begin)), keys);
    inner_products(keys, query.covariance, spread);  // Sigma is symmetric
    for (Index i = 0; i < keys.rows(); ++i) {
      double along = 0.0;
      double square = 0.0;
      for (Index t = 0; t < keys.cols(); ++t) {
        along = std::fma(mean[t], keys.row(i)[t], along);
        square = std::fma(spread.row(i)[t], keys.row(i)[t], square);
      }
      out.push_back(scale * along + 0.5 * scale * scale * square);
      shift = std::max(shift, out.back());
    }
  }
  shift = std::max(shift, sink);
  double z = std::isinf(sink) ? 0.0 : exp_shared(sink - shift);
  for (const double x : out) {
    z += exp_shared(x - shift);
  }
  const double log_z = shift + std::log(z);
  for (double& x : out) {
    x -= log_z;
  }
  return out;
}

double log_norm(std::span<const float> value) {
  const double square = squared_norm(value);
  return square > 0.0 ? 0.5 * std::log(square) : kLowest;
}

Compressed compress(const Task& task, const Params& params) {
  const FutureQueries queries(task, params);
  std::vector<std::vector<double>> logs;
  for (Index g = 0; g < task.head.group(); ++g) {
    MatrixD rows = queries.past(g);
    Gaussian query = fit(rows);
    turn(queries, query);
    logs.push_back(log_attention(task, query, sink_logit(task.head, g)));
  }
  std::vector<double> scores;
  for (std::size_t i = 0; i < task.tokens.size(); ++i) {
    const double length = log_norm(task.head.v.view().row_span(task.tokens[i]));
    scores.push_back(length == kLowest ? kLowest
                                       : log_reduced(logs, i, reduce_of(params)) + length);
  }
  return hold_top(task, params, scores);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "expected-attention";
  info.family = Family::eviction;
  info.copies = 2;
  info.summary = "largest expected attention of a Gaussian query, times the value's norm";
  info.source = "Devoto et al., 2025, arXiv:2510.00636; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "softmax over the middle (kvpress: over all tokens but its 4 sinks); rope=post is not the "
      "method: statistics of rotated queries, no future positions";
  info.params = size_params(joined({future_params(), {reduce_param()}}));
  info.grid = {"n_future=128,256,512;reduce=mean,max"};
  info.holds = Holds::tokens;
  info.facts = future_facts;
  info.resolve = resolve_future;
  return {info, compress};
}

}  // namespace kvbench::method_expected_attention
