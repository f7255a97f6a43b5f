// count-merge: evicts as h2o does ([1]), and merges each evicted token into the kept token with the
// most similar key (cosine, [2]'s idea). A merged token is the mean of its tokens, with their count
// as weight in both sums. kvbench's own.
// [1] Zhang et al., "H2O", NeurIPS 2023, arXiv:2306.14048.
// [2] Wan et al., "D2O", ICLR 2025, arXiv:2406.13035, section 3.3 (method `d2o`).
// Similarity is to the kept keys before any merge, so that the order does not matter. Keys are
// averaged after rotary embedding.
// In: K [m, d], V [m, dv], accumulated attention [m]. Out: B tokens with a float32 weight each;
// unmerged ones are held, the others made. A zero key has cosine 0 to everything; ties go to the
// lowest position. Means in float64, positions ascending, one rounding. Time O((m - B) B d), memory
// O(256 B).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/shared/heavy_recent.hpp"
#include "algorithms/shared/merged_means.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/nearest_keys.hpp"

namespace kvbench::method_count_merge {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index count = tokens_to_keep(task, params, task.head.pair_bytes() + kCountBytes);
  if (count == 0) {
    Compressed none;
    none.diag = {{"merged", "0"}};
    return none;
  }
  const Split split = split_heavy_recent(task, params, count);
  std::vector<std::vector<Index>> members;  // of each kept token's mean
  for (const Index i : split.kept) {
    members.push_back({i});
  }
  const std::vector<Index> target = task.backend.nearest_keys(task.head, split.kept, split.evicted);
  for (std::size_t i = 0; i < target.size(); ++i) {
    members[target[i]].push_back(split.evicted[i]);
  }
  for (std::vector<Index>& list : members) {
    std::sort(list.begin(), list.end());
  }
  Compressed out = mean_of_each(task, members);
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].size() > 1) {
      out.made.positions.push_back(split.kept[i]);
    }
  }
  out.aux_bytes = out.made.weights.empty() ? 0 : kCountBytes * count;
  out.diag = {{"merged", fmt::format("{}", split.evicted.size())},
              {"weight_sum", fmt::format("{}", task.count())}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "count-merge";
  info.family = Family::merging;
  info.copies = 2.5;
  info.summary =
      "h2o's eviction; evicted tokens join the nearest kept keys as means, weighted by count";
  info.source = "kvbench";
  info.params = heavy_recent_params();
  info.grid = {"heavy_ratio=0.1,0.25,0.5,0.75,1;reduce=mean,max"};
  info.facts = [](const Params&) {
    return JobFacts{.scoring = {Scoring()}, .weights = {kCountBytes, 0}};
  };
  return {info, compress};
}

}  // namespace kvbench::method_count_merge
