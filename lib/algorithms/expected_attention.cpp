// expected-attention: the tokens with the largest attention that a Gaussian query would pay them,
// times the length of their values.
// [1] Devoto, Jeblick, Jegou, "Expected Attention: KV Cache Compression by Estimating Attention
// from
//     Future Queries Distribution", 2025, arXiv:2510.00636.
// Departs from [1]: the queries of traces have their rotary embedding, so mean and covariance are
// those of post-RoPE queries and no rotation to future positions is averaged in.
// Per query head, with mean mu and covariance Sigma (over N) of the scoring queries:
//   E exp(s<q,k>) = exp(s mu.k + s^2 k'Sigma k / 2),
// softmax over the task's tokens, reduced over the group, times |v|. Computed as logarithms, which
// rank alike and do not underflow. No scoring query: mu and Sigma are 0 and |v| decides.
// In: K [m, d], V [m, dv], Q [N, d]. Out: B tokens of weight 1. float64, fixed order.
// Time O(group (N + m) d^2), memory O((N + m) d).
#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/scoring.hpp"
#include "algorithms/size.hpp"
#include "attention/similarity.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

constexpr double kLowest = std::numeric_limits<double>::lowest();

// Mean [1, d] and covariance [d, d] of rows `rows` of `queries`.
struct Gaussian {
  MatrixD mean, covariance;
};

Gaussian fit(MatrixView queries, std::span<const Index> rows) {
  const Index d = queries.cols;
  const auto count = static_cast<double>(std::max<std::size_t>(1, rows.size()));
  Gaussian out;
  MatrixD x, x_t;
  gather_rows(queries, rows, x);
  out.mean.resize(1, d);
  std::fill_n(out.mean.data(), d, 0.0);
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index t = 0; t < d; ++t) {
      out.mean.data()[t] += x.row(r)[t];
    }
  }
  for (Index t = 0; t < d; ++t) {
    out.mean.data()[t] /= count;
  }
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index t = 0; t < d; ++t) {
      x.row(r)[t] -= out.mean.data()[t];
    }
  }
  transpose(x, x_t);
  inner_products(x_t, x, out.covariance);
  for (Index t = 0; t < d * d; ++t) {
    out.covariance.data()[t] /= count;
  }
  return out;
}

// log of the softmax over the tokens of s mu.k + s^2 k'Sigma k / 2. keys [m, d], keys_t [d, m].
std::vector<double> log_attention(const MatrixD& keys, const MatrixD& keys_t, const Gaussian& query,
                                  double scale) {
  MatrixD along, spread;
  inner_products(query.mean, keys_t, along);       // [1, m]
  inner_products(keys, query.covariance, spread);  // [m, d]; Sigma is symmetric
  std::vector<double> out(static_cast<std::size_t>(keys.rows()));
  double shift = kLowest;
  for (Index i = 0; i < keys.rows(); ++i) {
    double square = 0.0;
    for (Index t = 0; t < keys.cols(); ++t) {
      square = std::fma(spread.row(i)[t], keys.row(i)[t], square);
    }
    const double x = scale * along.data()[i] + 0.5 * scale * scale * square;
    out[static_cast<std::size_t>(i)] = x;
    shift = std::max(shift, x);
  }
  double z = 0.0;
  for (const double x : out) {
    z += exp_shared(x - shift);
  }
  const double log_z = shift + std::log(z);
  for (double& x : out) {
    x -= log_z;
  }
  return out;
}

// log of the reduction over the group of exp(logs[g][i]).
double log_reduced(const std::vector<std::vector<double>>& logs, std::size_t i, Reduce reduce) {
  double largest = logs.front()[i];
  for (const std::vector<double>& head : logs) {
    largest = std::max(largest, head[i]);
  }
  if (reduce == Reduce::max || logs.size() == 1) {
    return largest;
  }
  double sum = 0.0;
  for (const std::vector<double>& head : logs) {
    sum += exp_shared(head[i] - largest);
  }
  const double count = reduce == Reduce::mean ? static_cast<double>(logs.size()) : 1.0;
  return largest + std::log(sum / count);
}

double log_norm(std::span<const float> value) {
  double square = 0.0;
  for (const float x : value) {
    square = std::fma(static_cast<double>(x), static_cast<double>(x), square);
  }
  return square > 0.0 ? 0.5 * std::log(square) : kLowest;
}

Compressed compress(const Task& task, const Params& params) {
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes());
  std::vector<Index> rows;  // of the query matrices
  for (Index j = task.scoring.begin; j < task.scoring.end; ++j) {
    rows.push_back(j - task.head.q_start());
  }
  MatrixD keys, keys_t;
  gather_rows(task.head.k, task.tokens, keys);
  transpose(keys, keys_t);
  std::vector<std::vector<double>> logs;
  for (const Matrix& queries : task.head.q) {
    logs.push_back(log_attention(keys, keys_t, fit(queries, rows), task.head.scale));
  }
  std::vector<double> scores;
  for (std::size_t i = 0; i < task.tokens.size(); ++i) {
    const double length = log_norm(task.head.v.view().row_span(task.tokens[i]));
    scores.push_back(length == kLowest ? kLowest
                                       : log_reduced(logs, i, reduce_of(params)) + length);
  }
  Compressed out;
  out.held.tokens = keep_top(task.tokens, scores, kept, task.device);
  return out;
}

}  // namespace

Method method_expected_attention() {
  MethodInfo info;
  info.name = "expected-attention";
  info.summary = "largest expected attention of a Gaussian query, times the value's norm";
  info.source = "Devoto et al., 2025, arXiv:2510.00636";
  info.departures =
      "mean and covariance of post-RoPE scoring queries, no average over future rotations; scores "
      "reduced over the group";
  info.params = size_params();
  info.params.push_back(reduce_param());
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.scores = true;
  return {info, compress};
}

}  // namespace kvbench
