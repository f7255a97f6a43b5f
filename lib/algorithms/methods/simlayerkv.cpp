// simlayerkv: lazy layers keep nothing of the middle (sinks and recent tokens stay), the others all
// of it.
// [1] Zhang et al., "SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction", 2024,
//     arXiv:2410.13846, section 4.
// [2] SimLayerKVPress of kvpress 8bb29b9, presses/simlayerkv_press.py, the public implementation.
// Laziness is the softmax weight of a layer's last `n_last` scoring queries outside the middle,
// mean over queries and all query heads ([2] omits the weight on these queries' own tokens).
// threshold=x reduces layers lazier than x. A budget reduces the laziest (ties: the highest layer)
// until the rest fit the bytes of all replayed layers; if that reduces all, the rows are
// degenerate.
// Survey: {weight on the middle}. A head without a share is treated as a layer of its own. Time
// O(m) beside the scores of n_last queries.
#include <algorithm>
#include <numeric>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/whole_or_nothing.hpp"
#include "algorithms/shared/window_weights.hpp"
#include "attention/estimator.hpp"
#include "attention/query_block.hpp"

namespace kvbench::method_simlayerkv {
namespace {

Survey survey(const Task& task, const Params& params) {
  const Range queries = last_queries(task, params.integer("n_last"));
  const std::vector<double> sums = reduce_group(task.scores->sums(queries), Reduce::mean);
  const std::vector<double> middle = gather_scores(sums, task.tokens);
  const double weight = std::accumulate(middle.begin(), middle.end(), 0.0) /
                        static_cast<double>(std::max<Index>(1, queries.size()));
  if (!params.is_auto("threshold")) {
    return {task.count(), {weight}};
  }
  const Index budget = given_budget(task.budget_bytes, "threshold=");
  return {std::min(task.count(), budget / task.head.pair_bytes()), {weight}};
}

struct Layer {
  std::vector<std::size_t> heads;  // indices of its surveys
  double on_middle = 0.0;          // weight, mean over its heads
  Index bytes = 0;                 // of its middle
};

std::vector<Layer> layers_of(std::span<const Survey> surveys) {
  std::vector<Layer> out;
  for (std::size_t i = 0; i < surveys.size(); ++i) {
    if (i == 0 || surveys[i].layer != surveys[i - 1].layer) {
      out.emplace_back();
    }
    out.back().heads.push_back(i);
    out.back().on_middle += surveys[i].data.front();
    out.back().bytes += surveys[i].middle * surveys[i].pair_bytes;
  }
  for (Layer& layer : out) {
    layer.on_middle /= static_cast<double>(layer.heads.size());
  }
  return out;
}

// The layers not lazier than the threshold.
std::vector<const Layer*> keep_by_threshold(const std::vector<Layer>& layers, double threshold) {
  std::vector<const Layer*> out;
  for (const Layer& layer : layers) {
    if (1.0 - layer.on_middle <= threshold) {
      out.push_back(&layer);
    }
  }
  return out;
}

// The layers that remain when the laziest are reduced until the others fit `bytes`.
std::vector<const Layer*> keep_by_bytes(const std::vector<Layer>& layers, Index bytes) {
  std::vector<const Layer*> out;
  Index held = 0;
  for (const Layer& layer : layers) {
    out.push_back(&layer);
    held += layer.bytes;
  }
  std::stable_sort(out.begin(), out.end(), [](const Layer* a, const Layer* b) {
    return a->on_middle > b->on_middle;  // the laziest last
  });
  for (; held > bytes; out.pop_back()) {
    held -= out.back()->bytes;
  }
  return out;
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  const std::vector<Layer> layers = layers_of(surveys);
  const bool by_budget = params.is_auto("threshold");
  Index bytes = 0;
  for (const Survey& s : surveys) {
    bytes += s.bytes();
  }
  const std::vector<const Layer*> whole = by_budget
                                              ? keep_by_bytes(layers, bytes)
                                              : keep_by_threshold(layers, params.real("threshold"));
  std::vector<Share> out(surveys.size());
  for (const Layer* layer : whole) {
    for (const std::size_t i : layer->heads) {
      out[i].tokens = surveys[i].middle;
    }
  }
  if (by_budget && whole.empty()) {
    mark_none_fits(out);
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  return whole_or_nothing(task, share_of(task, params, survey, share), "no layer fits");
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "simlayerkv";
  info.family = Family::eviction;
  info.summary = "lazy layers keep nothing of the middle, the others all of it";
  info.source = "Zhang et al., 2024, arXiv:2410.13846, section 4";
  info.departures =
      "initial and recent tokens are the protocol's; a budget reduces the laziest replayed layers "
      "until the bytes fit (no layer fits: degenerate), threshold= is the paper's rule";
  info.params = {
      real_param("threshold", "auto", 0, 1, "share of the softmax weight",
                 "reduce layers whose last queries give more than this to sinks and recent tokens, "
                 "in place of a budget; larger reduces fewer"),
      integer_param(
          "n_last", "1", 1, 1e9, "queries",
          "how many of the last scoring queries rate a layer; larger averages over more")};
  info.sizes = {"threshold"};
  info.grid = {"n_last=1,8,32,256"};
  info.holds = Holds::tokens;
  info.facts = [](const Params& p) {
    return JobFacts{.scoring = {{.last = p.integer("n_last")}}, .scope = Scope::layers};
  };
  info.not_quantizable = "it keeps whole layers";
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_simlayerkv
