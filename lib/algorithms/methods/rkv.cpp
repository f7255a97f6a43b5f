// rkv: the tokens that the last queries attend to and that no newer token repeats.
// [1] Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", 2025,
//     arXiv:2505.24133, section 3.
// [2] Its public code, github.com/Zefan-Cai/R-KV d15c976, rkv/compression/r1_kv.py.
// Scores lambda importance - (1 - lambda) redundancy (rkv_scores.hpp) by the last `window` queries;
// tokens from the first of these on stay.
// Stream: sinks and recent window are scored with the cache of C tokens, as in [2], but stay. One
// token too many reduces it to C + 1 - buffer (`buffer` at most half of C). The group's last
// `window` queries count as state at the trace's type, unless all tokens fit.
// Prefill: the cache is the prompt up to the last scoring query, compressed once.
// In: K, queries. Out: B tokens of weight 1. Time to compress L tokens: O(group window L d) and, if
// few keys are similar, O(L^2 d).
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "algorithms/shared/rkv_scores.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench::method_rkv {
namespace {

RkvRules rules_of(const Params& params) {
  return {params.real("lambda"), params.real("threshold"), params.integer("kernel"),
          params.text("logits") == "max"};
}

Compressed compress(const Task& task, const Params& params) {
  const Index kept = pairs_to_keep(task, params);
  if (kept == task.count()) {
    return hold(task.tokens);
  }
  const Index end = task.scoring.end;
  const Index first = std::max(task.scoring.begin, task.head.q_start());
  const Range queries = {std::min(end, std::max(first, end - params.integer("window"))), end};
  std::vector<Index> cache(static_cast<std::size_t>(std::max(end, task.tokens.back() + 1)));
  std::iota(cache.begin(), cache.end(), Index{0});
  return hold(keep_top(
      task.tokens,
      rkv_scores(task.head, cache, task.tokens, queries, rules_of(params), task.scores), kept));
}

class RkvCache final : public StreamCache {
 public:
  RkvCache(const StreamTask& task, const Params& params)
      : task_(task), rules_(rules_of(params)), window_(params.integer("window")) {
    const Index pair = task.head.pair_bytes();
    capacity_ = stream_tokens_to_keep(task, params, pair);
    if (capacity_ < stream_middle(task).size()) {
      query_bytes_ = std::min(window_, task.head.n()) * task.head.group() * task.head.d() *
                     bytes_per_element(task.head.dtype);
      capacity_ = stream_tokens_to_keep(task, params, pair, query_bytes_);
    }
    kept_ = capacity_ + 1 - std::min(params.integer("buffer"), capacity_ / 2 + 1);
  }

  void append(Index j, Index leaving) override {
    if (leaving < 0) {
      return;
    }
    own_.push_back(leaving);
    if (static_cast<Index>(own_.size()) > capacity_) {
      own_ = compressed(j);
      ++compressions_;
    }
  }

  Compressed view() const override {
    Compressed out = hold(own_);
    out.aux_bytes = query_bytes_;
    out.diag = {{"compressions", fmt::format("{}", compressions_)}};
    return out;
  }

 private:
  std::vector<Index> compressed(Index j) const {
    std::vector<Index> cache;
    cache.reserve(own_.size() + static_cast<std::size_t>(task_.sink + task_.recent));
    const auto add = [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) {
        cache.push_back(i);
      }
    };
    const Index sinks = std::min(task_.sink, j + 1);
    add(0, sinks);
    append_all(cache, own_);
    add(std::max(sinks, j + 1 - task_.recent), j + 1);
    const Range queries = {std::max<Index>(0, j + 1 - window_), j + 1};
    return keep_top(own_, rkv_scores(task_.head, cache, own_, queries, rules_), kept_);
  }

  StreamTask task_;
  RkvRules rules_;
  Index window_;
  Index query_bytes_ = 0;
  Index capacity_ = 0;
  Index kept_ = 0;  // after a compression
  Index compressions_ = 0;
  std::vector<Index> own_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "rkv";
  info.family = Family::eviction;
  info.summary = "largest attention from the last queries, less the redundancy of the key";
  info.source = "Cai et al., 2025, arXiv:2505.24133, section 3; github.com/Zefan-Cai/R-KV";
  info.departures =
      "tokens stay in order of position (code: pools in order of its last scores); sinks and "
      "recent tokens are scored but not pooled; a key without a similar one keeps its whole row "
      "(code: loses its entry of token 0); a stream compresses when its buffer is full, not every "
      "128 steps; prefill compresses once";
  info.params = size_params(
      {real_param("lambda", "0.07", 0, 1, "",
                  "weight of importance; redundancy has 1 - lambda; 1: attention alone"),
       integer_param("window", "8", 1, 1e9, "queries",
                     "how many of the last queries score; larger averages over more"),
       integer_param("kernel", "7", 1, 1e6, "tokens",
                     "width of the max pooling of importance; odd; 1: no pooling"),
       real_param("threshold", "0.5", -1, 1, "cosine",
                  "keys with a larger cosine repeat each other, and the last of them counts as "
                  "new; larger finds fewer"),
       choice_param("logits", {"max", "mean"}, "reduction of the query heads' logits"),
       integer_param("buffer", "128", 1, 1e9, "tokens",
                     "stream: tokens between two compressions, at most half of those held; larger "
                     "is faster and keeps fewer")});
  info.grid = {"lambda=0.01,0.07,0.3,0.7;window=8,256", "window=32", "kernel=1", "threshold=0.5"};
  info.holds = Holds::tokens;
  info.facts = snapkv_facts;
  return {info, compress, open_as<RkvCache>};
}

}  // namespace kvbench::method_rkv
