// d2o-merge: evicts as h2o does, and merges each evicted token into the kept token whose key is
// most similar to its own by cosine. [1] Wan et al., "D2O: Dynamic Discriminative Operations for
// Efficient Long-Context Inference of
//     Large Language Models", ICLR 2025, arXiv:2406.13035, section 3.3.
// Departs from [1]: every head and layer has the same budget ([1]: by the variance of attention);
// every evicted token is merged ([1] discards those whose similarity is below a running threshold);
// the merged key and value are plain means over the tokens that they stand for, and their count is
// their weight in both sums ([1]: weights exp(similarity), no weight in the softmax); similarity to
// the kept keys as they were, all merges at once ([1]: one by one while decoding). Keys are those
// of the trace, so after rotary embedding, and are averaged as such.
//
// In: K [m, d], V [m, dv], accumulated attention [m]. Out: B tokens; those that nothing was merged
// into are held as they are, the others made; a float32 weight each. A zero key has cosine 0 to
// everything; ties go to the lowest position. Means in float64, positions ascending, one rounding.
// Time O((m - B) B d), memory O(256 B).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/heavy_recent.hpp"
#include "attention/merge_rows.hpp"
#include "attention/most_similar.hpp"

namespace kvbench {
namespace {

constexpr Index kWeightBytes = 4;

std::vector<Index> tokens_at(const Task& task, std::span<const Index> places) {
  std::vector<Index> out;
  for (const Index p : places) {
    out.push_back(task.tokens[static_cast<std::size_t>(p)]);
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index count = tokens_to_keep(task, params, head.pair_bytes() + kWeightBytes);
  Compressed out;
  if (count == 0) {
    out.diag = {{"merged", "0"}};
    return out;
  }
  const Split split = split_heavy_recent(task, params, count);
  const std::vector<Index> kept = tokens_at(task, split.kept);
  const std::vector<Index> evicted = tokens_at(task, split.evicted);
  std::vector<std::vector<Index>> members(kept.size());  // what each kept token stands for
  for (std::size_t i = 0; i < kept.size(); ++i) {
    members[i].push_back(kept[i]);
  }
  const std::vector<Index> target = most_similar(head, kept, evicted, task.device);
  for (std::size_t i = 0; i < evicted.size(); ++i) {
    members[static_cast<std::size_t>(target[i])].push_back(evicted[i]);
  }
  RowMerge means;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (members[i].size() == 1) {
      out.held.tokens.push_back(kept[i]);
      continue;
    }
    std::sort(members[i].begin(), members[i].end());
    const auto begin = static_cast<Index>(means.members.size());
    means.members.insert(means.members.end(), members[i].begin(), members[i].end());
    means.lists.push_back({begin, static_cast<Index>(means.members.size())});
    out.made.weights.push_back(static_cast<float>(members[i].size()));
  }
  out.made.k = merge_rows(head.k, means, head.dtype, task.device);
  out.made.v = merge_rows(head.v, means, head.dtype, task.device);
  out.aux_bytes = !means.lists.empty() ? kWeightBytes * count : 0;
  out.diag = {{"merged", fmt::format("{}", evicted.size())},
              {"weight_sum", fmt::format("{}", kept.size() + evicted.size())}};
  return out;
}

}  // namespace

Method method_d2o_merge() {
  MethodInfo info;
  info.name = "d2o-merge";
  info.summary = "h2o's eviction; evicted tokens merged into the kept ones with the nearest keys";
  info.source = "Wan et al., D2O, ICLR 2025, arXiv:2406.13035";
  info.departures =
      "equal budgets; all evicted tokens are merged, none discarded by a threshold; plain means "
      "with their count as weight in place of exp(similarity); all merges at once";
  info.params = size_params();
  for (const ParamSpec& p : heavy_recent_params()) {
    info.params.push_back(p);
  }
  info.sizes = size_names();
  info.scores = true;
  return {info, compress};
}

}  // namespace kvbench
