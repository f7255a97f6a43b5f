// clustergen-kcenter: the floor(recent_share B) most recent tokens, and of the others those whose
// keys are the centres of greedy k-center.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", section 4 (its experiments: as many recent tokens as centres);
//     greedy k-center after Dyer and Frieze, 1985.
// weights=one is [1]. weights=cluster, a centre's weight being its cluster's size, is what [1]'s
// theory suggests. Cluster sizes and the mean of farthest-from-mean are over the tokens that are
// not recent.
// In: K [m, d] of the task's tokens. Out: B of them, ascending. Time O(B m d), memory O(m).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/kcenter.hpp"

namespace kvbench::method_clustergen_kcenter {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const bool cluster_weights = params.text("weights") == "cluster";
  const Index weight_bytes = cluster_weights ? 4 : 0;
  const Index kept = tokens_to_keep(task, params, task.head.pair_bytes() + weight_bytes);
  const Index recent = floor_share(params.real("recent_share"), kept);
  const auto others = task.tokens.first(task.tokens.size() - static_cast<std::size_t>(recent));
  const MatrixView keys = task.head.k;
  const Index first = params.text("start") == "first" ? 0 : farthest_from_mean(keys, others);
  const KCenter found =
      task.backend.rows(task.head, HeadRows::keys, others)->k_center(kept - recent, first);

  // Cluster sizes by index into the tokens; 0: not kept. A recent token is a cluster of its own.
  std::vector<Index> size(task.tokens.size(), 0);
  if (!found.centers.empty()) {
    for (const Index number : found.nearest) {
      ++size[found.centers[number]];
    }
  }
  std::fill(size.end() - recent, size.end(), Index{1});
  Compressed out;
  Index weight_sum = 0;
  for (std::size_t i = 0; i < size.size(); ++i) {
    if (size[i] > 0) {
      out.held.tokens.push_back(task.tokens[i]);
      weight_sum += cluster_weights ? size[i] : 1;
      if (cluster_weights) {
        out.held.weights.push_back(static_cast<float>(size[i]));
      }
    }
  }
  out.aux_bytes = weight_bytes * kept;
  out.diag = {{"weight_sum", fmt::format("{}", weight_sum)},
              {"radius", fmt::format("{:.9g}", found.radius.empty() ? 0.0 : found.radius.back())}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "clustergen-kcenter";
  info.family = Family::sampling;
  info.summary = "recent tokens, and the centres of greedy k-center over the keys of the others";
  info.source =
      "Zandieh et al., ClusterGen: Token Generation in Sublinear Time and Memory with Clustering "
      "KV Cache, section 4";
  info.departures =
      "the first centre, open in the paper, is the middle's first token; weights=cluster and "
      "start=farthest-from-mean are not in its experiments";
  info.params = size_params(
      {real_param("recent_share", "0.5", 0, 1, "share of the kept tokens",
                  "most recent tokens, rounded down; larger keeps fewer centres; 0: centres alone"),
       choice_param("start", {"first", "farthest-from-mean"},
                    "first centre: the middle's first token, or the token farthest from the mean "
                    "key (of those that are not recent)"),
       choice_param("weights", {"one", "cluster"},
                    "weight of a centre: 1, or the size of its cluster (4 bytes per kept token)")});
  info.grid = {"recent_share=0,0.25,0.5,0.75;weights=one,cluster"};
  info.holds = Holds::weighted_tokens;
  info.facts = [](const Params& p) {
    return JobFacts{.weights = {p.text("weights") == "cluster" ? 4 : 0, 0}};
  };
  return {info, compress};
}

}  // namespace kvbench::method_clustergen_kcenter
