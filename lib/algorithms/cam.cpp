// cam: evicts as h2o does, and adds each evicted value, at random, to the kept values after it.
// [1] Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs Inference", ICML 2024.
// Departs from [1]: under prefill all evictions are one step, with the attention accumulated over
// all scoring queries ([1]: one eviction per decoding step, with the scores of that moment); one
// set per KV head, scores reduced over its query heads.
//
// For an evicted token i let N be the next `merge` kept tokens of the middle behind it (fewer at
// the end). With probability clamp(acc_i / mean_N acc, 0, 1), one draw per token, every j in N gets
// v_j += v_i / |N|; so the sum of values is kept where the draw succeeds. A mean of 0 counts as
// probability 1 where acc_i > 0 and 0 where acc_i = 0. Keys stay as they are; a token whose value
// has changed is no longer held exactly. Sums in float64, positions ascending, one rounding.
// In: K, V [m, .], accumulated attention [m]. Out: B tokens of weight 1. Time O(m + (m - B) merge).
// Stream: one eviction per step as h2o_eviction.hpp has it, with the scores of that moment, as [1];
// an evicted value is passed on with what had been merged into it, and a sum is rounded when
// stored. The recent window, exact by the protocol, is not merged into.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "algorithms/h2o_eviction.hpp"
#include "algorithms/heavy_recent.hpp"
#include "attention/merge_rows.hpp"
#include "core/float16.hpp"

namespace kvbench {
namespace {

double merge_probability(double own, double mean) {
  if (mean > 0.0) {
    return std::clamp(own / mean, 0.0, 1.0);
  }
  return own > 0.0 ? 1.0 : 0.0;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index count = tokens_to_keep(task, params, head.pair_bytes());
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
    const double p = merge_probability(split.scores[static_cast<std::size_t>(place)], sum / width);
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

class CamStream final : public StreamCache {
 public:
  CamStream(const StreamTask& task, const Params& params)
      : head_(task.head),
        draws_(task.rng.stream("merge")),
        eviction_(task, params, params.integer("merge")) {}

  void append(Index j, Index leaving) override {
    const Eviction evicted = eviction_.step(j, leaving);
    if (evicted.token >= 0) {
      merge(evicted);
      changed_.erase(evicted.token);
    }
  }

  Compressed view() const override {
    Compressed out;
    for (const Index token : eviction_.tokens()) {
      if (!changed_.contains(token)) {
        out.held.tokens.push_back(token);
      }
    }
    const auto made = static_cast<Index>(changed_.size());
    out.made.k = Matrix(made, head_.d());
    out.made.v = Matrix(made, head_.dv());
    Index row = 0;
    for (const auto& [token, value] : changed_) {
      std::copy_n(head_.k.row(token), head_.d(), out.made.k.row(row));
      std::copy(value.begin(), value.end(), out.made.v.row(row));
      ++row;
    }
    out.aux_bytes = eviction_.aux_bytes();
    out.diag = {{"merged", fmt::format("{}", merged_)}, {"changed", fmt::format("{}", made)}};
    return out;
  }

 private:
  std::vector<float> value_of(Index token) const {
    const auto found = changed_.find(token);
    if (found != changed_.end()) {
      return found->second;
    }
    const auto row = head_.v.view().row_span(token);
    return {row.begin(), row.end()};
  }

  void merge(const Eviction& evicted) {
    if (evicted.after_count == 0) {
      return;
    }
    const auto width = static_cast<double>(evicted.after_count);
    const double p = merge_probability(evicted.score, evicted.after_sum / width);
    if (!(draws_.uniform(static_cast<std::uint64_t>(evicted.token)) < p)) {
      return;
    }
    ++merged_;
    const std::vector<float> value = value_of(evicted.token);
    const std::vector<Index>& kept = eviction_.tokens();
    const auto first = std::upper_bound(kept.begin(), kept.end(), evicted.token);
    for (auto it = first; it != first + evicted.after_count; ++it) {
      std::vector<float> target = value_of(*it);
      for (std::size_t c = 0; c < target.size(); ++c) {
        target[c] = stored(head_.dtype,
                           static_cast<double>(target[c]) + static_cast<double>(value[c]) / width);
      }
      changed_[*it] = std::move(target);
    }
  }

  const KvHead& head_;
  RngStream draws_;
  H2oEviction eviction_;
  std::map<Index, std::vector<float>> changed_;  // values that are no longer the trace's
  Index merged_ = 0;
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
      "prefill: all evictions in one step with scores over all scoring queries; one set per "
      "KV head; fewer than `merge` targets share the whole value";
  info.params = size_params();
  for (const ParamSpec& p : heavy_recent_params()) {
    info.params.push_back(p);
  }
  info.params.push_back(integer_param("merge", "32", 1, 1e9, "tokens",
                                      "kept tokens behind an evicted one that share its value"));
  info.sizes = size_names();
  info.scores = true;
  info.random = always_random;
  return {info, compress, open_stream};
}

}  // namespace kvbench
