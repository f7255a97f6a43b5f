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
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/error.hpp"
#include "core/math.hpp"
#include "core/rope.hpp"

namespace kvbench {
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

// mean := R mean, covariance := R covariance R', R the mean of the rotations to `positions`.
void rotate(const RopeTables& tables, Range positions, Gaussian& query) {
  const auto count = static_cast<double>(positions.size());
  std::vector<double> cos(tables.cos.cols(), 0.0), sin(cos);
  for (Index t = 0; t < tables.cos.cols(); ++t) {
    for (Index p = positions.begin; p < positions.end; ++p) {
      cos[t] += static_cast<double>(tables.cos.row(p)[t]);
      sin[t] += static_cast<double>(tables.sin.row(p)[t]);
    }
    cos[t] /= count;
    sin[t] /= count;
  }
  // R x, where channel c of x is x[c * stride].
  const auto turn = [&](double* x, Index stride) {
    for (Index t = 0; t < tables.cos.cols(); ++t) {
      double& a = x[tables.first(t) * stride];
      double& b = x[tables.second(t) * stride];
      const double turned = cos[t] * a - sin[t] * b;
      b = cos[t] * b + sin[t] * a;
      a = turned;
    }
  };
  turn(query.mean.data(), 1);
  const Index d = query.covariance.rows();
  for (Index i = 0; i < d; ++i) {
    turn(query.covariance.row(i), 1);  // columns: C R'
  }
  for (Index j = 0; j < d; ++j) {
    turn(query.covariance.data() + j, d);  // rows: R (C R')
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
  const double square = squared_norm(value);
  return square > 0.0 ? 0.5 * std::log(square) : kLowest;
}

// Scoring queries of one query head as rows, un-rotated unless `rope` is null.
MatrixD gather_queries(const Task& task, const Matrix& queries, Range positions,
                       const RopeTables* rope) {
  MatrixD out(positions.size(), queries.cols());
  for (Index r = 0; r < out.rows(); ++r) {
    const Index position = positions.begin + r;
    const std::span<const float> from = queries.view().row_span(position - task.head.q_start());
    if (rope != nullptr) {
      unrotate(*rope, position, from, {out.row(r), from.size()});
    } else {
      std::copy(from.begin(), from.end(), out.row(r));
    }
  }
  return out;
}

void require_tables(bool has_tables, Index end, Index positions) {
  if (!has_tables) {
    throw InputError(
        "expected-attention: rope=tables needs the trace's rotary tables (/rope), which this layer "
        "does not have; expected rope=post, or a trace dumped with them");
  }
  if (end > positions) {
    throw InputError(
        fmt::format("expected-attention: the rotary tables hold {} positions, expected at least {} "
                    "(the prompt's end and n_future)",
                    positions, end));
  }
}

Compressed compress(const Task& task, const Params& params) {
  const RopeTables* rope = params.text("rope") == "post" ? nullptr : task.rope;
  const Index future = params.integer("n_future");
  if (params.text("rope") == "tables") {
    require_tables(rope != nullptr, task.scoring.end + future,
                   rope != nullptr ? rope->positions() : 0);
  }
  const Range positions = {std::max(task.scoring.begin, params.integer("n_skip")),
                           task.scoring.end};
  std::vector<std::vector<double>> logs;
  for (Index g = 0; g < task.head.group(); ++g) {
    const Matrix& queries = task.head.q[g];
    MatrixD rows = gather_queries(task, queries, positions, rope);
    Gaussian query = fit(rows);
    if (rope != nullptr) {
      rotate(*rope, {task.scoring.end, task.scoring.end + future}, query);
    }
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

std::map<std::string, std::string> resolve(const Params& params, const LayerFacts& layer) {
  const bool has_tables = layer.rope_positions > 0;
  const std::string rope =
      params.is_auto("rope") ? (has_tables ? "tables" : "post") : params.text("rope");
  if (rope == "tables") {
    require_tables(has_tables, layer.scoring.end + params.integer("n_future"),
                   layer.rope_positions);
  }
  return {{"rope", rope}};
}

}  // namespace

Method method_expected_attention() {
  MethodInfo info;
  info.name = "expected-attention";
  info.family = Family::eviction;
  info.copies = 2;
  info.summary = "largest expected attention of a Gaussian query, times the value's norm";
  info.source = "Devoto et al., 2025, arXiv:2510.00636; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "softmax over the middle (kvpress: over all tokens but its 4 sinks); rope=post is not the "
      "method: statistics of rotated queries, no future positions";
  ParamSpec rope = choice_param(
      "rope", {"tables", "post"},
      "tables: queries are un-rotated by the trace's rotary tables and rotated to future "
      "positions; post: queries as stored; auto: tables if the trace has them, otherwise post");
  rope.fallback = "auto";
  info.params =
      size_params({std::move(rope),
                   integer_param("n_future", "512", 1, 1e6, "tokens",
                                 "rope=tables: positions after the prompt over which rotations are "
                                 "averaged; larger looks further ahead"),
                   integer_param("n_skip", "4", 0, 1e9, "queries",
                                 "first positions whose queries, often outliers, are skipped"),
                   reduce_param()});
  info.grid = {"n_future=128,256,512;reduce=mean,max"};
  info.holds = Holds::tokens;
  info.facts = [](const Params& p) {
    return JobFacts{.scoring = {Scoring()}, .rope = p.text("rope") != "post"};
  };
  info.resolve = resolve;
  return {info, compress};
}

}  // namespace kvbench
