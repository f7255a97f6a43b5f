#include "algorithms/evicting_cache.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "attention/device.hpp"

namespace kvbench {

EvictingCache::EvictingCache(const StreamTask& task, const EvictionRules& rules) : rules_(rules) {
  if (task.device != nullptr) {
    log_ = task.device->evictions(rules);
  } else {
    const Index n = task.head.n();
    cache_ = std::make_unique<AttendedCache>(
        task.head, std::min(rules.sink, n) + rules.kept + std::min(rules.window, n) + 1,
        rules.reduce);
  }
}

Eviction EvictingCache::step(Index j, Index leaving) {
  const Index left = j - rules_.window;
  if (leaving != (left < rules_.sink ? -1 : left)) {
    throw std::logic_error("evicting cache: another token leaves the window than its rules say");
  }
  const bool sink = j < rules_.sink;
  size_ += sink ? 0 : 1;
  if (leaving >= 0) {
    outside_.push_back(leaving);
  }
  Eviction out;
  if (cache_ == nullptr) {
    out = log_.at(static_cast<std::size_t>(j));
  } else {
    if (sink) {
      cache_->add_unscored(j);
    } else {
      cache_->add(j);
    }
    cache_->attend(j);
    if (static_cast<Index>(outside_.size()) > rules_.kept) {
      out = lightest_of(*cache_, outside_, rules_);
      cache_->remove(out.token);
    }
  }
  if (out.token >= 0) {
    outside_.erase(std::lower_bound(outside_.begin(), outside_.end(), out.token));
    --size_;
  }
  return out;
}

Eviction lightest_of(const AttendedCache& cache, const std::vector<Index>& outside,
                     const EvictionRules& rules) {
  const auto score = [&](Index slot) {
    return rules.accumulate ? cache.score(slot) : cache.last(slot);
  };
  auto lightest = cache.slots().find(outside.front());  // sinks come before it
  auto it = lightest;
  const auto candidates = static_cast<Index>(outside.size()) - rules.protected_recent;
  for (Index i = 0; i < candidates; ++i, ++it) {
    if (score(it->second) <= score(lightest->second)) {
      lightest = it;
    }
  }
  Eviction out;
  out.token = lightest->first;
  out.score = score(lightest->second);
  const Index last = outside.back();
  for (it = std::next(lightest);
       out.after_count < rules.after && it != cache.slots().end() && it->first <= last; ++it) {
    out.after_sum += score(it->second);
    ++out.after_count;
  }
  return out;
}

}  // namespace kvbench
