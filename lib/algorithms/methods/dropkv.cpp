// dropkv: the tokens whose loss alone would change the last queries' outputs most.
// [1] Zhang et al., "DropKV", 2026, openreview.net/forum?id=MqfNzH3TVH.
// [2] Its code by the authors in NVIDIA/kvpress, pull request 285: DropKVPress.
// Without token i, the output o_j of a query j with softmax weights p_j changes by p_ji / (1 -
// p_ji) (o_j - v_i). The score is
//   sum over the last `window` scoring queries of (p_ji / (1 - p_ji + 1e-6))^2 |v_i - o_j|^2,
// mean over the group, then pooled over `kernel` positions; tokens that are not scored count as 0.
// scope=layer: a layer's tokens compete by score, without a floor.
// In: K, V, Q of the window. Out: B tokens of weight 1. float64 from the head's weights and
// outputs. Time O(group window m (d + dv)).
#include <fmt/format.h>

#include <cmath>

#include "algorithms/shared/pooled_budget.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "algorithms/shared/window_weights.hpp"

namespace kvbench::method_dropkv {
namespace {

constexpr double kEpsilon = 1e-6;

// out[i] += sum over the queries r of odds^2 |v_i - o_r|^2, r ascending. p [r, n], outputs [r, dv].
void add_changes(const Task& task, const MatrixD& p, const MatrixD& outputs,
                 std::vector<double>& out) {
  MatrixD outputs_t(outputs.cols(), kWindowBlock);  // zero columns behind the last query
  for (Index r = 0; r < outputs.rows(); ++r) {
    for (Index c = 0; c < outputs.cols(); ++c) {
      outputs_t.row(c)[r] = outputs.row(r)[c];
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Index token = task.tokens[i];
    double distance[kWindowBlock] = {};
    for (Index c = 0; c < outputs_t.rows(); ++c) {
      const auto value = static_cast<double>(task.head.v.row(token)[c]);
#pragma omp simd
      for (Index r = 0; r < kWindowBlock; ++r) {
        const double apart = value - outputs_t.row(c)[r];
        distance[r] = std::fma(apart, apart, distance[r]);
      }
    }
    for (Index r = 0; r < p.rows(); ++r) {
      const double odds = p.row(r)[token] / (1.0 - p.row(r)[token] + kEpsilon);
      out[i] = std::fma(odds * odds, distance[r], out[i]);
    }
  }
}

// [m]
std::vector<double> scores_of(const Task& task, const Params& params) {
  const std::string key =
      fmt::format("dropkv {} {}", params.integer("window"), params.text("reduce"));
  const auto change = whole_scores(task, key, [&] {
    ScoreBook::Scores heads(task.head.group(), std::vector<double>(task.tokens.size(), 0.0));
    each_window_block(task, params, [&](Index g, std::span<const Index> queries, const MatrixD& p) {
      const ExactAttention exact = task.backend.exact_attention(task.head, g, queries, 1);
      add_changes(task, p, exact.output, heads[g]);
    });
    return ScoreBook::Scores{reduce_group(heads, reduce_of(params))};
  });
  return pooled_over(change.front(), task.tokens, params.integer("kernel"));
}

Survey survey(const Task& task, const Params& params) {
  return competing(task, pairs_to_keep(task, params), scores_of(task, params));
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& /*params*/) {
  return pooled_shares(surveys, [](Index) { return Index{0}; });
}

Compressed compress(const Task& task, const Params& params) {
  return hold(keep_top(task.tokens, scores_of(task, params), own_pairs(task, params)));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "dropkv";
  info.family = Family::eviction;
  info.copies = 1;
  info.summary = "largest change of the last queries' outputs if the token alone were dropped";
  info.source =
      "Zhang et al., 2026, openreview.net/forum?id=MqfNzH3TVH; NVIDIA/kvpress, pull "
      "request 285";
  info.departures =
      "pooled over the middle (code: over all tokens); the newest tokens are the protocol's, not "
      "the window's";
  info.params = joined(
      {size_params({choice_param("scope", {"head", "layer"},
                                 "whose tokens compete for the budget: a KV head's or a layer's")}),
       window_params("32", "7"),
       {reduce_param()}});
  info.grid = {"window=32,256;kernel=1,7;scope=head,layer"};
  info.holds = Holds::tokens;
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.scope = p.text("scope") == "layer" ? Scope::layer : Scope::head;
    return out;
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_dropkv
