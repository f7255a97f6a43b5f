// H2O's choice, shared by the methods that evict as it does and merge what they evict: the heaviest
// tokens by accumulated attention outside the most recent, and these.
// [1] Zhang et al., "H2O", NeurIPS 2023, arXiv:2306.14048.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/scoring.hpp"
#include "algorithms/size.hpp"

namespace kvbench {

/// A head's tokens by place in the task (0 .. m-1), both ascending.
struct Split {
  std::vector<Index> kept;
  std::vector<Index> evicted;
  std::vector<double> scores;  ///< [m]: accumulated attention, reduced over the group
};

/// Positions of the task's tokens at `places`.
inline std::vector<Index> tokens_at(const Task& task, std::span<const Index> places) {
  std::vector<Index> out;
  out.reserve(places.size());
  for (const Index p : places) {
    out.push_back(task.tokens[static_cast<std::size_t>(p)]);
  }
  return out;
}

/// The parameters that the choice reads beside the sizes: `heavy_ratio`, `reduce`.
inline std::vector<ParamSpec> heavy_recent_params() {
  return {real_param("heavy_ratio", "0.5", 0, 1, "share of the kept tokens",
                     "heavy hitters, rounded down to whole tokens; the others are the most recent"),
          reduce_param()};
}

/// `kept` tokens: floor(heavy_ratio * kept) heaviest outside the recent ones, the rest most recent.
inline Split split_heavy_recent(const Task& task, const Params& params, Index kept) {
  Split out;
  out.scores =
      take_scores(reduce_group(task.scores->sums(task.scoring), reduce_of(params)), task.tokens);
  const Index heavy = floor_share(params.real("heavy_ratio"), kept);
  const Index older = task.count() - (kept - heavy);
  std::vector<Index> places(static_cast<std::size_t>(older));
  for (Index i = 0; i < older; ++i) {
    places[static_cast<std::size_t>(i)] = i;
  }
  const std::vector<Index> top = keep_top(
      places, std::span(out.scores).first(static_cast<std::size_t>(older)), heavy, task.device);
  std::set_difference(places.begin(), places.end(), top.begin(), top.end(),
                      std::back_inserter(out.evicted));
  out.kept = top;
  for (Index i = older; i < task.count(); ++i) {
    out.kept.push_back(i);
  }
  return out;
}

}  // namespace kvbench
