// cam: evicts as h2o does, and adds each evicted value, at random, to the kept values after it.
// [1] Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs Inference", ICML 2024.
//
// For an evicted token i let N be the next `merge` kept tokens of the middle (fewer at the end).
// With probability clamp(acc_i / mean_N acc, 0, 1), one draw per token, every j in N gets v_j +=
// v_i / |N|. A mean of 0 gives probability 1 if acc_i > 0, otherwise 0. Keys stay. A changed token
// is not held exactly.
//
// prefill=stream: one eviction at a time over the middle, with the scores of that moment, as [1].
// An evicted value includes what was merged into it; each sum is rounded. Always on the CPU.
// prefill=once: one step for all evictions. Sums in float64, positions ascending, one rounding.
// Stream: as prefill=stream, by h2o_rules. Sinks and the recent window receive nothing.
// In: K, V [m, .], queries or accumulated attention [m]. Out: B tokens of weight 1. Time: once O(m
// + (m - B) merge dv) beside the scores, stream O(group m (B + sink) d), memory O(B (d + dv)).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/shared/evicting_cache.hpp"
#include "algorithms/shared/heavy_recent.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/merge_rows.hpp"
#include "core/float16.hpp"

namespace kvbench::method_cam {
namespace {

// clamp(own / mean, 0, 1), for an evicted token of score `own` and receivers of that mean score.
double probability(double own, double mean) {
  if (mean > 0.0) {
    return std::clamp(own / mean, 0.0, 1.0);
  }
  return own > 0.0 ? 1.0 : 0.0;
}

Figures figures(std::size_t merged, Index changed) {
  return {{"merged", fmt::format("{}", merged)}, {"changed", fmt::format("{}", changed)}};
}

// Values of a cache that loses one token at a time. Changed values are stored here, rounded to the
// trace's type.
class MergedValues {
 public:
  // Reads `draws` at an evicted token's position, so that its draw does not depend on others. The
  // head must outlive the object.
  MergedValues(const KvHead& head, const RngStream& draws)
      : head_(head), draws_(draws), changed_(head.n()) {}

  // `evicted` has left `kept` (ascending). Adds its current value to the next evicted.after_count
  // tokens. Every sum is rounded once. Time O(after_count dv).
  void evict(const Eviction& evicted, std::span<const Index> kept) {
    const auto width = static_cast<double>(evicted.after_count);
    if (evicted.after_count > 0 && draws_.uniform(static_cast<std::uint64_t>(evicted.token)) <
                                       probability(evicted.score, evicted.after_sum / width)) {
      ++merged_;
      const float* value = value_of(evicted.token);
      std::vector<double> share(value, value + head_.dv());
      for (double& x : share) {
        x /= width;
      }
      const auto first = std::upper_bound(kept.begin(), kept.end(), evicted.token);
      for (auto it = first; it != first + evicted.after_count; ++it) {
        std::vector<float>& target = changed_[*it];
        if (target.empty()) {
          const auto own = head_.v.view().row_span(*it);
          target.assign(own.begin(), own.end());
        }
        store_sums(head_.dtype, share.data(), target.data(), head_.dv());
      }
    }
    std::vector<float>().swap(changed_[evicted.token]);  // frees the memory
  }

  Compressed view(std::span<const Index> kept) const {
    Compressed out = hold_unchanged(
        head_, kept, [&](std::size_t place) { return !changed_[kept[place]].empty(); });
    Index row = 0;
    for (const Index token : kept) {
      if (!changed_[token].empty()) {
        std::ranges::copy(changed_[token], out.made.v.row(row++));
      }
    }
    out.diag = figures(merged_, row);
    return out;
  }

 private:
  const float* value_of(Index token) const {
    return changed_[token].empty() ? head_.v.row(token) : changed_[token].data();
  }

  const KvHead& head_;
  RngStream draws_;
  std::vector<std::vector<float>> changed_;  // [n]; empty: the head's own
  std::size_t merged_ = 0;
};

// Streams the task's tokens through a cache of `count`. Each token joins. Its queries, if the trace
// holds them and they score, attend to sinks, held tokens and itself (no recent tokens, no other
// method's) and add to the scores of held tokens. If more than `count` are held, H2O's rules evict.
template <class T>
Compressed compress_stream(const Task& task, const Params& params, Index count) {
  if (task.count() <= count || count == 0) {
    return MergedValues(task.head, {}).view(task.tokens.first(std::min(count, task.count())));
  }
  EvictionRules rules;
  rules.kept = count;
  rules.sink = task.sink;
  rules.protected_recent = recent_of(params, count);
  rules.reduce = reduce_of(params);
  rules.after = params.integer("merge");
  MergedValues values(task.head, task.rng.stream("merge"));
  AttendedTokens<T> cache(task.head, task.sink + count + 1, rules);
  for (Index i = 0; i < task.sink; ++i) {
    cache.add(i);
  }
  std::vector<Index> held;
  for (const Index j : task.tokens) {
    cache.add(j);
    held.push_back(j);
    if (task.scoring.contains(j) && j >= task.head.q_start()) {
      cache.attend(j);
    }
    if (static_cast<Index>(held.size()) > count) {
      const Eviction gone = cache.evict(count + 1);
      held.erase(std::lower_bound(held.begin(), held.end(), gone.token));
      values.evict(gone, held);
    }
  }
  return values.view(held);
}

Compressed compress_once(const Task& task, const Params& params, Index count) {
  const Index merge = params.integer("merge");
  const Split split = split_heavy_recent(task, params, count);
  const RngStream draws = task.rng.stream("merge");

  // The tokens whose draw succeeds, and for each kept one the range of them that it receives:
  // contiguous, since `next` and `end` never decrease.
  RowMerge values;
  std::vector<Range> added(split.kept.size());
  std::size_t next = 0;
  for (const Index token : split.evicted) {
    while (next < split.kept.size() && split.kept[next] < token) {
      ++next;
    }
    const std::size_t end = std::min(split.kept.size(), next + static_cast<std::size_t>(merge));
    if (next == end) {
      break;  // no kept token follows
    }
    const auto width = static_cast<double>(end - next);
    double sum = 0.0;
    for (std::size_t j = next; j < end; ++j) {
      sum += split.scores[split.kept[j]];
    }
    const double p = probability(split.scores[token], sum / width);
    if (!(draws.uniform(static_cast<std::uint64_t>(token)) < p)) {
      continue;
    }
    const auto at = static_cast<Index>(values.members.size());
    values.members.push_back(token);
    values.shares.push_back(width);
    for (std::size_t j = next; j < end; ++j) {
      added[j] = {added[j].size() > 0 ? added[j].begin : at, at + 1};
    }
  }

  Compressed out = hold_unchanged(task.head, split.kept,
                                  [&](std::size_t place) { return added[place].size() > 0; });
  for (std::size_t j = 0; j < split.kept.size(); ++j) {
    if (added[j].size() > 0) {
      values.lists.push_back(added[j]);
      values.onto.push_back(split.kept[j]);
    }
  }
  out.made.v = merge_rows(task.head.v, values, task.head.dtype);
  out.diag = figures(values.members.size(), out.made.v.rows());
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Index count = pairs_to_keep(task, params);
  if (params.text("prefill") == "once") {
    return compress_once(task, params, count);
  }
  return with_element(task.head.precision, [&](auto element) {
    return compress_stream<decltype(element)>(task, params, count);
  });
}

class CamStream final : public StreamCache {
 public:
  CamStream(const StreamTask& task, const Params& params)
      : values_(task.head, task.rng.stream("merge")),
        cache_(task, h2o_rules(task, params, params.integer("merge"))) {}

  void append(Index j, Index leaving) override {
    const Eviction evicted = cache_.step(j, leaving);
    if (evicted.token >= 0) {
      values_.evict(evicted, cache_.tokens());
    }
  }

  Compressed view() const override {
    Compressed out = values_.view(cache_.tokens());
    out.aux_bytes = cache_.aux_bytes();
    return out;
  }

 private:
  MergedValues values_;
  EvictingCache cache_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "cam";
  info.family = Family::merging;
  info.copies = 1;
  info.summary = "h2o's eviction; evicted values are added at random to the kept values after them";
  info.source = "Zhang et al., CaM, ICML 2024";
  info.departures =
      "one set per KV head; fewer than `merge` receivers share the whole value; under prefill only "
      "the middle is evicted and merged, and queries after it score nothing; prefill=once: all "
      "evictions in one step with scores over all scoring queries";
  info.params = heavy_recent_params(
      {integer_param(
           "merge", "32", 1, 1e9, "tokens",
           "kept tokens after an evicted one that share its value; larger spreads it wider"),
       choice_param(
           "prefill", {"stream", "once"},
           "one eviction at a time, with the attention of the middle's own queries so far, or all "
           "at once, with that of all scoring queries; ignored by the stream protocol")});
  info.grid = {"heavy_ratio=0.5,0.75;merge=8,32", "prefill=once"};
  info.facts = [](const Params& p) {
    return JobFacts{.scoring = {{.middle = p.text("prefill") == "stream"}}, .random = true};
  };
  return {info, compress, open_as<CamStream>};
}

}  // namespace kvbench::method_cam
