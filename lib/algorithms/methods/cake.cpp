// cake: attention from the last queries, its mean and its variance over them; layers whose
// attention is spread and shifts get more tokens.
// [1] Qin et al., "CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences", ICLR
//     2025, arXiv:2503.12491.
// [2] Its code, antgroup/cakekv c4675ce: cake/model/modify_llama.py, cake/cake_cache.py.
// p_ji: softmax weight of the task's token i for query j of the last `window` scoring queries, over
// its causal past. Token score: mean_j p_ji + gamma var_j p_ji (over window - 1), averaged over
// `kernel` positions of which those without a token count as 0, then reduced over the group.
// A layer's preference: H^(1/tau_entropy) V^(1/tau_variance), over all its query heads H = - sum p
// ln(p + 1e-10) and V = sum_i var_j p_ji. Layers share the tokens by preference (equally if all are
// 0); what exceeds a layer's middle is spread equally over the others. A head without a share keeps
// B. In: K [n, d], Q. Out: tokens of weight 1. Weights in the head's precision, moments in float64.
// Time O(group window n d), memory O(window n).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "algorithms/shared/layer_budgets.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "algorithms/shared/window_weights.hpp"
#include "core/math.hpp"

namespace kvbench::method_cake {
namespace {

constexpr double kLogFloor = 1e-10;  // [2]'s

// Per query head: means [m], variances [m], then {entropy}.
ScoreBook::Scores moments(const Task& task, const Params& params) {
  const Index window = params.integer("window");
  return whole_scores(task, fmt::format("cake {}", window), [&] {
    const Range last = last_queries(task, window);
    std::vector<Index> queries(std::max<Index>(0, last.size()));
    std::iota(queries.begin(), queries.end(), last.begin);
    const auto count = static_cast<double>(std::max<std::size_t>(1, queries.size()));
    ScoreBook::Scores out;
    for (Index g = 0; g < task.head.group(); ++g) {
      const MatrixD p =
          queries.empty() ? MatrixD() : task.backend.exact_probabilities(task.head, g, queries);
      std::vector<double> mean, variance;
      double entropy = 0.0;
      for (const Index i : task.tokens) {
        double sum = 0.0;
        for (Index j = 0; j < p.rows(); ++j) {
          sum += p.row(j)[i];
          entropy -= p.row(j)[i] * std::log(p.row(j)[i] + kLogFloor);
        }
        mean.push_back(sum / count);
        double square = 0.0;
        for (Index j = 0; j < p.rows(); ++j) {
          square += (p.row(j)[i] - mean.back()) * (p.row(j)[i] - mean.back());
        }
        variance.push_back(square / std::max(1.0, count - 1.0));
      }
      out.insert(out.end(), {std::move(mean), std::move(variance), {entropy}});
    }
    return out;
  });
}

Survey survey(const Task& task, const Params& params) {
  double entropy = 0.0;
  double variance = 0.0;
  const ScoreBook::Scores all = moments(task, params);
  for (std::size_t h = 0; h < all.size(); h += 3) {
    variance = std::accumulate(all[h + 1].begin(), all[h + 1].end(), variance);
    entropy += all[h + 2].front();
  }
  return {pairs_to_keep(task, params), {entropy, variance}};
}

// exp(logs) over the largest: the powers themselves may leave float64's range. All 0 if all are.
std::vector<double> relative_to_largest(std::vector<double> logs) {
  const double largest = *std::ranges::max_element(logs);
  for (double& x : logs) {
    x = std::isfinite(largest) ? exp_shared(x - largest) : 0.0;
  }
  return logs;
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  std::map<Index, std::array<double, 2>> of_layer;
  for (const Survey& s : surveys) {
    of_layer[s.layer][0] += s.data[0];
    of_layer[s.layer][1] += s.data[1];
  }
  return layer_shares(
      surveys, "cake", [&](std::span<const Survey* const> layers, LayerTotals totals) {
        std::vector<double> logs, limits;
        for (const Survey* s : layers) {
          const auto& [entropy, variance] = of_layer.at(s->layer);
          logs.push_back(std::log(std::max(0.0, entropy)) / params.real("tau_entropy") +
                         std::log(variance) / params.real("tau_variance"));
          limits.push_back(static_cast<double>(s->middle));
        }
        return proportional(relative_to_largest(logs), limits, static_cast<double>(totals.tokens));
      });
}

Compressed compress(const Task& task, const Params& params) {
  const ScoreBook::Scores all = moments(task, params);
  std::vector<std::vector<double>> heads;
  for (std::size_t h = 0; h < all.size(); h += 3) {
    std::vector<double> plain = all[h];
    for (std::size_t i = 0; i < plain.size(); ++i) {
      plain[i] += params.real("gamma") * all[h + 1][i];
    }
    heads.push_back(pooled_over(plain, task.tokens, params.integer("kernel")));
  }
  return hold(
      keep_top(task.tokens, reduce_group(heads, reduce_of(params)), own_pairs(task, params)));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "cake";
  info.family = Family::eviction;
  info.summary =
      "mean and variance of the last queries' attention; layers share by its spread and shift";
  info.source = "Qin et al., ICLR 2025, arXiv:2503.12491; antgroup/cakekv c4675ce";
  info.departures =
      "scores, spread and shift of the middle (the code: of all tokens before its window, which it "
      "keeps); layers are the replayed ones; one compression at the prompt's end, without "
      "cascades; both exponents are 1 (the code: measured for each model and budget)";
  info.params = size_params(
      {integer_param("window", "32", 1, 1e9, "queries",
                     "how many of the last scoring queries score; larger averages over more"),
       integer_param("kernel", "5", 1, 1e6, "tokens",
                     "width of the pooling over neighbouring positions; odd"),
       real_param("gamma", "200", 0, 1e9, "",
                  "weight of the variance; larger keeps tokens that some queries need"),
       real_param("tau_entropy", "1", 0.01, 100, "",
                  "larger: spread matters less to a layer's share"),
       real_param("tau_variance", "1", 0.01, 100, "",
                  "larger: shift matters less to a layer's share"),
       reduce_param()});
  info.grid = {"gamma=0,50,200,1000", "tau_entropy=2,4;tau_variance=2,4"};
  info.holds = Holds::tokens;
  info.copies = 1;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index) {
    return 8 * l.n * (std::min(p.integer("window"), l.scoring.size()) + 4 * l.group);
  };
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.scope = Scope::layers;
    return out;
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_cake
