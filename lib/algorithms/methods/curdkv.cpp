// curdkv: the tokens with the largest product of the key's and the value's share of their window's
// squared norms. Reads no query.
// [1] Sengupta, Chaudhary, Chakraborty, "Value-Guided KV Compression for LLMs via Approximated CUR
//     Decomposition", NeurIPS 2025, arXiv:2509.15038.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: CURPress with its defaults.
// Windows of 16 start at the task's first token; the last may be shorter. A token scores
// |k|^2 / sum |k|^2 * |v|^2 / sum |v|^2, the sums over its window, a share of a zero sum being 0.
// The first 4 tokens rank highest. Rotation does not change norms, so keys are taken as stored.
// In: K [m, d], V [m, dv]. Out: B tokens of weight 1. float64. Time O(m (d + dv)).
#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"

namespace kvbench::method_curdkv {
namespace {

// Each row's share of the squared norms of its window, [tokens].
std::vector<double> window_shares(MatrixView rows, std::span<const Index> tokens,
                                  std::size_t window) {
  std::vector<double> out;
  for (const Index i : tokens) {
    out.push_back(squared_norm(rows.row_span(i)));
  }
  for (std::size_t b = 0; b < out.size(); b += window) {
    const std::size_t end = std::min(out.size(), b + window);
    double sum = 0.0;
    for (std::size_t i = b; i < end; ++i) {
      sum += out[i];
    }
    for (std::size_t i = b; i < end; ++i) {
      out[i] = sum > 0.0 ? out[i] / sum : 0.0;
    }
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const auto window = static_cast<std::size_t>(params.integer("window"));
  std::vector<double> scores = window_shares(task.head.k, task.tokens, window);
  const std::vector<double> values = window_shares(task.head.v, task.tokens, window);
  const Index first = std::min(task.count(), params.integer("first"));
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] =
        static_cast<Index>(i) < first ? std::numeric_limits<double>::max() : scores[i] * values[i];
  }
  return hold_top(task, params, scores);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "curdkv";
  info.family = Family::eviction;
  info.summary = "largest product of the key's and the value's share of their window's norms";
  info.source = "Sengupta et al., NeurIPS 2025, arXiv:2509.15038; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "windows and the tokens that rank highest start at the middle (kvpress: at the prompt); "
      "shares of a zero window are 0; no random projection, as by default in kvpress";
  info.params = size_params(
      {integer_param(
           "window", "16", 1, 1e9, "tokens",
           "neighbours with a common sum of norms; larger compares over longer stretches"),
       integer_param("first", "4", 0, 1e9, "tokens",
                     "oldest tokens of the middle, which rank highest")});
  info.grid = {"window=16,64,256,1024"};
  info.holds = Holds::tokens;
  return {info, compress};
}

}  // namespace kvbench::method_curdkv
