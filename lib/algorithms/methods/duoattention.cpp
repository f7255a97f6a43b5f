// duoattention: retrieval heads keep the whole middle, the others nothing of it (with sinks and
// recent tokens these are StreamingLLM's).
// [1] Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming
//     Heads", ICLR 2025, arXiv:2410.10819.
// Candidates are the heads in the trace's `retrieval_heads`, without it all heads. Those with the
// largest attention mass on the middle (ties to the lowest head) are kept, as many as fit the
// layer's budget whole. If none fits, nothing is held and the rows are degenerate.
// Survey: {eligible, mass}. A head without a share is treated as a layer of its own. Time O(m)
// beside the scores.
#include <algorithm>
#include <numeric>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/whole_or_nothing.hpp"
#include "attention/estimator.hpp"
#include "attention/query_block.hpp"

namespace kvbench::method_duoattention {
namespace {

Survey survey(const Task& task, const Params& params) {
  const std::vector<double> scores = gather_scores(accumulated_scores(task, params), task.tokens);
  const bool eligible = task.retrieval_heads.empty() || task.retrieval_heads[task.kv_head] != 0;
  return {pairs_to_keep(task, params),
          {eligible ? 1.0 : 0.0, std::accumulate(scores.begin(), scores.end(), 0.0)}};
}

std::vector<Share> share(std::span<const Survey> surveys, const Params&) {
  Index left = 0;
  std::vector<std::size_t> order;
  for (std::size_t h = 0; h < surveys.size(); ++h) {
    left += surveys[h].bytes();  // bytes, so that fractions of heads add up
    if (surveys[h].data[0] != 0.0) {
      order.push_back(h);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return surveys[a].data[1] > surveys[b].data[1];
  });
  std::vector<Share> out(surveys.size());
  bool some = order.empty();  // without retrieval heads all heads stream
  for (const std::size_t h : order) {
    const Index whole = surveys[h].middle * surveys[h].pair_bytes;
    if (whole <= left) {
      out[h].tokens = surveys[h].middle;
      left -= whole;
      some = true;
    }
  }
  if (!some) {
    mark_none_fits(out);
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  return whole_or_nothing(task, share_of(task, params, survey, share), "no head fits");
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "duoattention";
  info.family = Family::eviction;
  info.copies = 1;
  info.not_quantizable = "it keeps whole heads";
  info.summary = "retrieval heads keep the whole middle, the others nothing of it";
  info.source = "Xiao et al., ICLR 2025, arXiv:2410.10819";
  info.departures =
      "without the trace's retrieval_heads, heads rank by attention mass on the middle, not by "
      "trained gates; as many as fit the layer's budget whole (none: degenerate)";
  info.params = size_params({reduce_param()});
  info.grid = {"reduce=mean,max"};
  info.holds = Holds::tokens;
  info.facts = [](const Params&) {
    return JobFacts{.scoring = {Scoring()}, .scope = Scope::layer};
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_duoattention
