// cam: evicts as h2o does, and adds each evicted value, at random, to the kept values after it.
// [1] Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs Inference", ICML 2024.
// Departs from [1]: one set per KV head, scores reduced over its query heads; fewer than `merge`
// targets share the whole value.
//
// For an evicted token i let N be the next `merge` kept tokens of the middle behind it (fewer at
// the end). With probability clamp(acc_i / mean_N acc, 0, 1), one draw per token, every j in N gets
// v_j += v_i / |N|; so the sum of values is kept where the draw succeeds. A mean of 0 counts as
// probability 1 where acc_i > 0 and 0 where acc_i = 0. Keys stay as they are; a token whose value
// has changed is no longer held exactly.
//
// Prefill, prefill=stream: one eviction at a time with the scores of that moment, as [1], over the
// middle (h2o_prefill.hpp); an evicted value is passed on with what had been merged into it, and
// each sum is rounded. Queries behind the middle score nothing. On the CPU, with a device too.
// Prefill, prefill=once: all evictions are one step, with the attention accumulated over all
// scoring queries. Sums in float64, positions ascending, one rounding.
// Stream: as prefill=stream, by h2o_eviction.hpp. Sinks and the recent window, exact by the
// protocol, are not merged into.
// In: K, V [m, .], queries or accumulated attention [m]. Out: B tokens of weight 1. Under prefill
// the scores are gone when it ends. Time: once O(m + (m - B) merge dv) beside the scores, stream
// O(group m (B + sink) d).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/cam_values.hpp"
#include "algorithms/h2o_eviction.hpp"
#include "algorithms/h2o_prefill.hpp"
#include "algorithms/heavy_recent.hpp"
#include "attention/merge_rows.hpp"

namespace kvbench {
namespace {

Compressed compress_stream(const Task& task, const Params& params, Index count) {
  EvictionRules rules;
  rules.kept = count;
  rules.protected_recent = count - floor_share(params.real("heavy_ratio"), count);
  rules.reduce = reduce_of(params);
  rules.after = params.integer("merge");
  CamValues values(task.head, task.rng.stream("merge"));
  const std::vector<Index> kept = stream_evictions(
      task, rules,
      [&](const Eviction& gone, std::span<const Index> left) { values.evict(gone, left); });
  return values.view(kept);
}

Compressed compress_once(const Task& task, const Params& params, Index count) {
  const KvHead& head = task.head;
  const Index merge = params.integer("merge");
  const Split split = split_heavy_recent(task, params, count);
  const RngStream draws = task.rng.stream("merge");
  const auto token = [&](Index place) { return task.tokens[static_cast<std::size_t>(place)]; };

  // The tokens whose draw succeeds, and for each kept one which of them are added to it: `next` and
  // `end` never go back, so they are neighbours.
  RowMerge values;
  std::vector<Range> added(split.kept.size());
  std::size_t next = 0;
  for (const Index place : split.evicted) {
    while (next < split.kept.size() && split.kept[next] < place) {
      ++next;
    }
    const std::size_t end = std::min(split.kept.size(), next + static_cast<std::size_t>(merge));
    if (next == end) {
      break;  // nothing is kept behind this one, nor behind any later
    }
    const auto width = static_cast<double>(end - next);
    double sum = 0.0;
    for (std::size_t j = next; j < end; ++j) {
      sum += split.scores[static_cast<std::size_t>(split.kept[j])];
    }
    const double p = cam_probability(split.scores[static_cast<std::size_t>(place)], sum / width);
    // Drawn by position, so that the draw of a token does not depend on the others.
    if (!(draws.uniform(static_cast<std::uint64_t>(token(place))) < p)) {
      continue;
    }
    const auto at = static_cast<Index>(values.members.size());
    values.members.push_back(token(place));
    values.shares.push_back(width);
    for (std::size_t j = next; j < end; ++j) {
      added[j] = {added[j].size() > 0 ? added[j].begin : at, at + 1};
    }
  }

  Compressed out;
  for (std::size_t j = 0; j < split.kept.size(); ++j) {
    const Index kept = token(split.kept[j]);
    if (added[j].size() == 0) {
      out.held.tokens.push_back(kept);
    } else {
      values.lists.push_back(added[j]);
      values.onto.push_back(kept);
    }
  }
  out.made.k = take_rows(head.k, values.onto);
  out.made.v = merge_rows(head.v, values, head.dtype, task.device);
  out.diag = {{"merged", fmt::format("{}", values.members.size())},
              {"changed", fmt::format("{}", values.onto.size())}};
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Index count = tokens_to_keep(task, params, task.head.pair_bytes());
  return params.text("prefill") == "once" ? compress_once(task, params, count)
                                          : compress_stream(task, params, count);
}

class CamStream final : public StreamCache {
 public:
  CamStream(const StreamTask& task, const Params& params)
      : values_(task.head, task.rng.stream("merge")),
        eviction_(task, params, params.integer("merge")) {}

  void append(Index j, Index leaving) override {
    const Eviction evicted = eviction_.step(j, leaving);
    if (evicted.token >= 0) {
      values_.evict(evicted, eviction_.tokens());
    }
  }

  Compressed view() const override {
    Compressed out = values_.view(eviction_.tokens());
    out.aux_bytes = eviction_.aux_bytes();
    return out;
  }

 private:
  CamValues values_;
  H2oEviction eviction_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<CamStream>(task, params);
}

}  // namespace

Method method_cam() {
  MethodInfo info;
  info.name = "cam";
  info.summary = "h2o's eviction; evicted values are added at random to the kept ones after them";
  info.source = "Zhang et al., CaM, ICML 2024";
  info.departures =
      "one set per KV head; fewer than `merge` targets share the whole value; under prefill only "
      "the middle is evicted and merged, and queries behind it score nothing; prefill=once: all "
      "evictions in one step with scores over all scoring queries";
  info.params = size_params();
  for (const ParamSpec& p : heavy_recent_params()) {
    info.params.push_back(p);
  }
  info.params.push_back(integer_param("merge", "32", 1, 1e9, "tokens",
                                      "kept tokens behind an evicted one that share its value"));
  info.params.push_back(
      choice_param("prefill", {"stream", "once"},
                   "under prefill: one eviction at a time, with the attention of the middle's own "
                   "queries so far, or all at once, with that of all scoring queries. The stream "
                   "protocol streams whatever is said here"));
  info.grid = {"heavy_ratio=0.5,0.75;merge=8,32", "prefill=once"};
  info.sizes = size_names();
  info.scores = true;
  info.middle_queries_only = [](const Params& p) { return p.text("prefill") == "stream"; };
  info.random = always_random;
  return {info, compress, open_stream};
}

}  // namespace kvbench
