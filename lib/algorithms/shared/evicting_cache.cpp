#include "algorithms/shared/evicting_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "algorithms/shared/heavy_recent.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/stream_tokens.hpp"

namespace kvbench {
namespace {

constexpr Index kScoreBytes = 4;

}  // namespace

EvictionRules h2o_rules(const StreamTask& task, const Params& params, Index after) {
  EvictionRules out;
  out.window = task.recent;
  out.sink = task.sink;
  const Index window = task.head.n() - stream_middle(task).end;
  out.kept = stream_tokens_to_keep(task, params, task.head.pair_bytes() + kScoreBytes,
                                   kScoreBytes * window);
  out.protected_recent = recent_of(params, out.kept);
  out.reduce = reduce_of(params);
  out.after = after;
  return out;
}

Eviction EvictingCache::step(Index j, Index leaving) {
  now_ = j;
  size_ += j < rules_.sink ? 0 : 1;
  if (leaving >= 0) {
    outside_.push_back(leaving);
  }
  const Eviction out = stream_->step(j);
  if (out.token >= 0) {
    outside_.erase(std::lower_bound(outside_.begin(), outside_.end(), out.token));
    --size_;
  }
  return out;
}

Index EvictingCache::aux_bytes() const {
  return rules_.accumulate ? kScoreBytes * size_ : 0;
}

Compressed EvictingCache::view() const {
  Compressed out = hold(outside_);
  out.aux_bytes = aux_bytes();
  if (!outside_.empty()) {
    const double sum = std::accumulate(outside_.begin(), outside_.end(), 0.0);
    const double mean = static_cast<double>(now_) - sum / static_cast<double>(outside_.size());
    out.diag = {{"age_mean", fmt::format("{:.6g}", mean)},
                {"age_max", fmt::format("{}", now_ - outside_.front())}};
  }
  return out;
}

}  // namespace kvbench
