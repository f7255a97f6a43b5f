// duoattention: retrieval heads keep the whole middle, the others nothing of it (sinks and recent
// tokens stay, so these heads are StreamingLLM's).
// [1] Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming
//     Heads", ICLR 2025, arXiv:2410.10819.
// Retrieval heads are those that the trace's `retrieval_heads` names, and without it any head; as
// many as the layer's budget allows in full, largest attention mass on the middle first (ties to
// the lowest head). Departs from [1]: without the attribute, heads are ranked by attention mass
// from the scoring queries, not by gates trained on synthetic data.
// A head surveys {eligible, mass}. A head without a share is a layer of its own. Time O(m) beside
// the scores.
#include <algorithm>
#include <numeric>

#include "algorithms/scoring.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Survey survey(const Task& task, const Params& params) {
  const std::vector<double> scores =
      take_scores(reduce_group(task.scores->sums(task.scoring), reduce_of(params)), task.tokens);
  const bool eligible = task.retrieval_heads.empty() ||
                        task.retrieval_heads[static_cast<std::size_t>(task.kv_head)] != 0;
  Survey out;
  out.kv_head = task.kv_head;
  out.middle = task.count();
  out.tokens = tokens_to_keep(task, params, task.head.pair_bytes());
  out.pair_bytes = task.head.pair_bytes();
  out.budget_bytes = task.budget_bytes.value_or(out.tokens * out.pair_bytes);
  out.values = {eligible ? 1.0 : 0.0, std::accumulate(scores.begin(), scores.end(), 0.0)};
  return out;
}

std::vector<Share> share(std::span<const Survey> surveys, const Params&) {
  Index left = 0;
  std::vector<std::size_t> order;
  for (std::size_t h = 0; h < surveys.size(); ++h) {
    left += surveys[h].budget_bytes;  // in bytes: two odd halves make a whole head
    if (surveys[h].values[0] != 0.0) {
      order.push_back(h);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return surveys[a].values[1] > surveys[b].values[1];
  });
  std::vector<Share> out(surveys.size());
  for (const std::size_t h : order) {
    const Index whole = surveys[h].middle * surveys[h].pair_bytes;
    if (whole <= left) {
      out[h].tokens = surveys[h].middle;
      left -= whole;
    }
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Index kept = share_of(task, params, survey, share).tokens;
  Compressed out;
  if (kept >= task.count()) {
    out.held.tokens.assign(task.tokens.begin(), task.tokens.end());
  }
  return out;
}

}  // namespace

Method method_duoattention() {
  MethodInfo info;
  info.name = "duoattention";
  info.summary = "retrieval heads keep the whole middle, the others nothing of it";
  info.source = "Xiao et al., ICLR 2025, arXiv:2410.10819";
  info.departures =
      "where the trace has no retrieval_heads, heads are ranked by their attention mass on the "
      "middle, not by trained gates; as many as the layer's budget allows in full";
  info.params = size_params();
  info.params.push_back(reduce_param());
  info.grid = {"reduce=mean,max"};
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.scores = true;
  info.scope = Scope::layer;
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench
