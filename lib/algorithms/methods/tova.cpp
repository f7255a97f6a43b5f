// tova: the tokens that the last query attends to most; one set for all heads of a layer.
// [1] Oren et al., "Transformers are Multi-State RNNs", EMNLP 2024, arXiv:2401.06104, section 3.2.
// A head surveys its group's scores [m]; the layer's are their mean (max, sum) over all heads, and
// each head keeps the same B tokens with weight 1. A head without a share is a layer of its own.
// Stream: at each step the group's queries attend to everything held, sinks and recent window
// included, and of the tokens outside these the one with the smallest weight (the latest of equal
// ones) goes where they are more than B. Time O(m) beside the scores of one query; stream:
// O(group (B + recent) d) per token.
#include <algorithm>
#include <stdexcept>

#include "algorithms/shared/evicting_cache.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench {
namespace {

Survey survey(const Task& task, const Params& params) {
  const Range last = {std::max(task.scoring.begin, task.scoring.end - 1), task.scoring.end};
  return {pairs_to_keep(task, params),
          take_scores(reduce_group(task.scores->sums(last), reduce_of(params)), task.tokens)};
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  if (surveys.empty()) {
    return {};
  }
  std::vector<std::vector<double>> heads;
  Share common;
  common.tokens = surveys.front().tokens;
  for (const Survey& s : surveys) {
    if (s.values.size() != surveys.front().values.size()) {
      throw std::logic_error("tova: heads of a layer compress the same tokens");
    }
    heads.push_back(s.values);
    common.tokens = std::min(common.tokens, s.tokens);
  }
  common.values = std::make_shared<std::vector<double>>(reduce_group(heads, reduce_of(params)));
  return std::vector<Share>(surveys.size(), common);
}

Compressed compress(const Task& task, const Params& params) {
  const Share given = share_of(task, params, survey, share);
  return hold(keep_top(task.tokens, *given.values, given.tokens));
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  EvictionRules rules;
  rules.window = task.recent;
  rules.sink = task.sink;
  rules.kept = stream_tokens_to_keep(task, params, task.head.pair_bytes());
  rules.accumulate = false;  // weights of one step only: no score is kept, none is counted
  rules.reduce = reduce_of(params);
  return std::make_unique<EvictingCache>(task, rules);
}

Index scratch_bytes(const Params& /*params*/, const LayerFacts& l, Index middle, Index kept) {
  if (l.stream) {
    return evicting_cache_bytes(l, kept);
  }
  return std::max(attention_sums_bytes(l.element_bytes, 1, l.n),
                  8 * l.n + 16 * middle + selection_bytes(middle));
}

}  // namespace

Method method_tova() {
  MethodInfo info;
  info.name = "tova";
  info.family = Family::eviction;
  info.summary = "largest attention from the last scoring query, one set per layer";
  info.source = "Oren et al., EMNLP 2024, arXiv:2401.06104, section 3.2";
  info.departures =
      "prefill compresses once instead of dropping one token at each step; in a stream one set per "
      "KV head instead of per layer";
  info.params =
      size_params({choice_param("reduce", {"mean", "max", "sum"},
                                "how scores of the layer's query heads become one per token")});
  info.grid = {"reduce=mean,max"};
  info.keeps_tokens = true;
  info.scores = true;
  info.query_window = [](const Params&) { return Index{1}; };
  info.scope = Scope::layer;
  info.scratch_bytes = scratch_bytes;
  return {info, compress, open_stream, survey, share};
}

}  // namespace kvbench
