// lagkv: the tokens whose channels spread most on the scale of the following tokens.
// [1] Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are
//     Important", 2025, arXiv:2504.04704, section 3.
// [2] LagKVPress of kvpress 0.5.5, presses/lagkv_press.py, the public implementation.
// After lag_sink tokens come partitions of `lag`, whose channels are scaled by the next partition's
// minimum and maximum. A token's score is the softmax over its partition of the sample standard
// deviation of its scaled channels, mean of keys' and values'; what counts is the rank within the
// partition. Sinks, the last whole partition and the tail (with fewer than two partitions all
// tokens) rank above all, the newest highest ([2]: in topk's order); other ties go to the lowest
// position.
// In: K [m, d], V [m, dv]. Out: B tokens of weight 1. float64, as ranks collide in the model's type
// ([2]); fixed order. Time O(m (d + dv)).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "algorithms/shared/size.hpp"
#include "core/math.hpp"

namespace kvbench::method_lagkv {
namespace {

// Minimum and maximum - minimum of each channel over `tokens`.
struct Scale {
  std::vector<double> low, width;
};

Scale scale_of(MatrixView m, std::span<const Index> tokens) {
  std::vector<float> low(m.row_span(tokens.front()).begin(), m.row_span(tokens.front()).end());
  std::vector<float> high = low;
  for (const Index i : tokens) {
    for (std::size_t t = 0; t < low.size(); ++t) {
      low[t] = std::min(low[t], m.row(i)[t]);
      high[t] = std::max(high[t], m.row(i)[t]);
    }
  }
  Scale out;
  for (std::size_t t = 0; t < low.size(); ++t) {
    out.low.push_back(static_cast<double>(low[t]));
    out.width.push_back(static_cast<double>(high[t]) - static_cast<double>(low[t]));
  }
  return out;
}

// Sample standard deviation over all channels; 0 for a single one. A channel of width 0 scales to
// 0.
double spread(std::span<const float> row, const Scale& scale) {
  const auto scaled = [&](std::size_t t) {
    return scale.width[t] > 0.0 ? (static_cast<double>(row[t]) - scale.low[t]) / scale.width[t]
                                : 0.0;
  };
  const auto count = static_cast<double>(row.size());
  if (row.size() < 2) {
    return 0.0;
  }
  double sum = 0.0;
  for (std::size_t t = 0; t < row.size(); ++t) {
    sum += scaled(t);
  }
  double square = 0.0;
  for (std::size_t t = 0; t < row.size(); ++t) {
    const double off = scaled(t) - sum / count;
    square = std::fma(off, off, square);
  }
  return std::sqrt(square / (count - 1.0));
}

// Adds softmax over `part` of the spreads to `out`.
void add_scores(MatrixView m, std::span<const Index> part, std::span<const Index> next,
                std::vector<double>& out) {
  const Scale scale = scale_of(m, next);
  std::vector<double> e;
  for (const Index i : part) {
    e.push_back(spread(m.row_span(i), scale));
  }
  const double shift = *std::max_element(e.begin(), e.end());
  double z = 0.0;
  for (double& x : e) {
    x = exp_shared(x - shift);
    z += x;
  }
  for (std::size_t i = 0; i < e.size(); ++i) {
    out[i] += e[i] / z;
  }
}

// Ranks in [0, 1) of a partition's tokens, the largest score highest, ties to the lowest position.
void rank(std::span<const double> scores, std::span<double> out) {
  const std::vector<std::uint32_t> order = best_first(scores);
  for (std::size_t better = 0; better < order.size(); ++better) {
    out[order[better]] =
        static_cast<double>(order.size() - 1 - better) / static_cast<double>(order.size());
  }
}

Compressed compress(const Task& task, const Params& params) {
  const Index sink = std::min(task.count(), params.integer("lag_sink"));
  const Index lag = params.integer("lag");
  // From 1 on for tokens that rank above all, the newest highest.
  std::vector<double> ranks(task.tokens.size());
  std::iota(ranks.begin(), ranks.end(), 1.0);
  for (Index begin = sink; begin + 2 * lag <= task.count(); begin += lag) {
    const auto at = static_cast<std::size_t>(begin);
    const auto size = static_cast<std::size_t>(lag);
    const auto part = task.tokens.subspan(at, size);
    const auto next = task.tokens.subspan(at + size, size);
    std::vector<double> scores(size, 0.0);  // twice the mean, the same ranks
    add_scores(task.head.k, part, next, scores);
    add_scores(task.head.v, part, next, scores);
    rank(scores, std::span(ranks).subspan(at, size));
  }
  return hold_top(task, params, ranks);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "lagkv";
  info.family = Family::eviction;
  info.summary = "largest channel spread on the scale of the following tokens, by partition";
  info.source = "Liang et al., 2025, arXiv:2504.04704, section 3";
  info.departures =
      "channels constant in the next partition scale to 0; a budget below sinks, last partition "
      "and tail keeps their newest; equal scores rank by position";
  info.params = size_params(
      {integer_param(
           "lag_sink", "4", 0, 1e9, "tokens",
           "leading tokens of the middle that rank above all; larger protects the oldest"),
       integer_param("lag", "128", 1, 1e9, "tokens",
                     "tokens of a partition; larger compares with more tokens and protects more of "
                     "the newest")});
  info.grid = {"lag=32,64,128,256,512"};
  info.holds = Holds::tokens;
  return {info, compress};
}

}  // namespace kvbench::method_lagkv
