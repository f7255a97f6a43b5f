// tova: the tokens with the largest attention from the last query; one set for all heads of a
// layer.
// [1] Oren et al., "Transformers are Multi-State RNNs", EMNLP 2024, arXiv:2401.06104, section 3.2.
// Survey: the group's scores [m]. Share: their mean (max, sum) over the layer's heads, each of
// which keeps the same B tokens with weight 1. A head without a share is treated as a layer of its
// own.
// Stream: at each step the group's queries attend to everything held. If more than B tokens are
// held outside sinks and recent window, the one with the smallest weight leaves, the latest of
// equal ones. Time O(m) beside the scores of one query; stream: O(group (B + recent) d) per token.
#include <algorithm>

#include "algorithms/shared/evicting_cache.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_tova {
namespace {

Survey survey(const Task& task, const Params& params) {
  const Range last = {std::max(task.scoring.begin, task.scoring.end - 1), task.scoring.end};
  return {pairs_to_keep(task, params),
          gather_scores(reduce_group(task.scores->sums(last), reduce_of(params)), task.tokens)};
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  std::vector<std::vector<double>> heads;
  Share common;
  common.tokens = surveys.front().tokens;
  for (const Survey& s : surveys) {
    heads.push_back(s.data);
    common.tokens = std::min(common.tokens, s.tokens);
  }
  common.data = std::make_shared<std::vector<double>>(reduce_group(heads, reduce_of(params)));
  return std::vector<Share>(surveys.size(), common);
}

Compressed compress(const Task& task, const Params& params) {
  const Share mine = share_of(task, params, survey, share);
  return hold(keep_top(task.tokens, *mine.data, mine.tokens));
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  EvictionRules rules;
  rules.window = task.recent;
  rules.sink = task.sink;
  rules.kept = stream_tokens_to_keep(task, params, task.head.pair_bytes());
  rules.accumulate = false;  // no scores to hold or count
  rules.reduce = reduce_of(params);
  return std::make_unique<EvictingCache>(task, rules);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "tova";
  info.family = Family::eviction;
  info.summary = "largest attention from the last scoring query, one set per layer";
  info.source = "Oren et al., EMNLP 2024, arXiv:2401.06104, section 3.2";
  info.departures =
      "prefill compresses once instead of dropping one token at each step; in a stream one set per "
      "KV head instead of per layer";
  info.params = size_params({choice_param("reduce", {"mean", "max", "sum"},
                                          "reduction of scores over the layer's query heads")});
  info.grid = {"reduce=mean,max"};
  info.holds = Holds::tokens;
  info.facts = [](const Params&) {
    return JobFacts{.scoring = {{.last = 1}}, .scope = Scope::layer};
  };
  return {info, compress, open_stream, survey, share};
}

}  // namespace kvbench::method_tova
