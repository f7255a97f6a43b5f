// defensivekv: the largest attention of any of the last queries, times the value's output norm.
// [1] Feng et al., "Taming the Fragility of KV Cache Eviction in LLM Inference", 2025,
//     arXiv:2510.13334.
// [2] Its public code, github.com/FFY0/DefensiveKV 9251b95, efficient_defensivekv_press.py.
// s = the largest weight from any query of the window and the group, each query's weights pooled
// over `kernel` positions (0 where no token is scored) and scaled back to their sum; at least the
// mean of s. Scores are s times the mean |W_h v|_1 over the group, divided by the sum of these over
// the layer's KV heads. First come, in each head, the tokens before the one at which the cumulative
// share of mean attention reaches `first_mass`, at most B. In: K, V, Q, W [hidden, group dv]. Out:
// tokens of weight 1. float64. Time O(group (window m (d + kernel) + n dv hidden)).
#include <algorithm>
#include <limits>
#include <numeric>

#include "algorithms/shared/output_norms.hpp"
#include "algorithms/shared/pooled_budget.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "algorithms/shared/window_weights.hpp"
#include "core/vector_sums.hpp"

namespace kvbench::method_defensivekv {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

// Of each token the number of tokens before it in the first stage; of others the largest double.
std::vector<double> first_ranks(const std::vector<double>& mean, double first_mass) {
  std::vector<double> out(mean.size());
  const double enough = first_mass * std::accumulate(mean.begin(), mean.end(), 0.0);
  double mass = 0.0, rank = 0.0;
  for (const std::uint32_t i : best_first(mean)) {
    mass += mean[i];
    out[i] = mass < enough ? rank++ : kMost;
  }
  return out;
}

// s and first_ranks, [m] each.
ScoreBook::Scores window_scores(const Task& task, const Params& params) {
  const std::size_t m = task.tokens.size();
  ScoreBook::Scores peaks(task.head.group(), std::vector<double>(m, 0.0)), means(peaks);
  each_window_block(task, params, [&](Index g, std::span<const Index> queries, const MatrixD& p) {
    for (Index r = 0; r < static_cast<Index>(queries.size()); ++r) {
      const auto row = gather_scores({p.row(r), static_cast<std::size_t>(p.cols())}, task.tokens);
      const auto pooled = pooled_over(row, task.tokens, params.integer("kernel"));
      const double pooled_sum = sum(pooled.data(), task.count());
      const double factor = pooled_sum > 0.0 ? sum(row.data(), task.count()) / pooled_sum : 0.0;
      for (std::size_t i = 0; i < m; ++i) {
        peaks[g][i] = std::max(peaks[g][i], factor * pooled[i]);
        means[g][i] += row[i];
      }
    }
  });
  std::vector<double> s = reduce_group(peaks, Reduce::max);
  const double least = sum(s.data(), task.count()) / static_cast<double>(m);
  std::ranges::transform(s, s.begin(), [&](double x) { return std::max(x, least); });
  return {std::move(s), first_ranks(reduce_group(means, Reduce::mean), params.real("first_mass"))};
}

// s, positions, norms, first_ranks.
Survey survey(const Task& task, const Params& params) {
  const auto scores = whole_scores(task, "defensivekv " + params.canonical(),
                                   [&] { return window_scores(task, params); });
  Survey out = competing(task, pairs_to_keep(task, params), scores[0]);
  for (const auto& more : {gather_scores(mean_output_norms(task), task.tokens), scores[1]}) {
    out.data.insert(out.data.end(), more.begin(), more.end());
  }
  return out;
}

// Scores [m]. `common`: B, then the norms' sums over the layer.
std::vector<double> scores_of(const Survey& head, const std::vector<double>& common) {
  const std::size_t m = head.data.size() / 4;
  std::vector<double> out(m);
  for (std::size_t i = 0; i < m; ++i) {
    const double share = common[1 + i] > 0.0 ? head.data[2 * m + i] / common[1 + i] : 0.0;
    out[i] = head.data[3 * m + i] < common[0] ? kMost : head.data[i] * share;
  }
  return out;
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& /*params*/) {
  require_one_shape(surveys, "defensivekv: scope=layers shares tokens, so it needs");
  std::vector<Survey> ranked(surveys.begin(), surveys.end());
  std::vector<std::shared_ptr<std::vector<double>>> common;
  for (const Survey& head : surveys) {
    const std::size_t m = head.data.size() / 4;
    auto own = std::make_shared<std::vector<double>>(1 + m, 0.0);
    own->front() = static_cast<double>(head.tokens);
    for (const Survey& other : surveys) {
      for (std::size_t i = 0; i < m && other.layer == head.layer; ++i) {
        (*own)[1 + i] += other.data[2 * m + i];
      }
    }
    std::ranges::copy(scores_of(head, *own), ranked[common.size()].data.begin());
    common.push_back(!common.empty() && *common.back() == *own ? common.back() : std::move(own));
  }
  std::vector<Share> out = pooled_shares(ranked, [](Index) { return Index{0}; });
  for (std::size_t h = 0; h < out.size(); ++h) {
    out[h].data = common[h];
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Share mine = share_of(task, params, survey, share);
  return hold(keep_top(task.tokens, scores_of(survey(task, params), *mine.data), mine.tokens));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "defensivekv";
  info.family = Family::eviction;
  info.copies = 1;
  info.summary = "largest attention of any of the last queries, times the value's output norm";
  info.source = "Feng et al., 2025, arXiv:2510.13334; github.com/FFY0/DefensiveKV 9251b95";
  info.departures =
      "means, sums and pooling over the middle (code: all tokens before its window); first_mass is "
      "not lowered by the attention on the newest tokens; the first stage is limited by B, and "
      "comes first over layers too (code: at its layer's largest score); the protocol's newest "
      "tokens";
  info.params = size_params(
      joined({{choice_param("scope", {"layer", "layers"},
                            "whose tokens compete: a layer's or (Layer-DefensiveKV) all layers'"),
               real_param("first_mass", "0.9", 0, 1, "share of the mean attention",
                          "tokens with this share come first; larger gives values less influence")},
              window_params("32", "5")}));
  info.grid = {"first_mass=0,0.5,0.9;window=32,256", "scope=layers", "kernel=1"};
  info.holds = Holds::tokens;
  info.resolve = resolve_projection;
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.o_proj = true;
    out.scope = p.text("scope") == "layers" ? Scope::layers : Scope::layer;
    return out;
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_defensivekv
