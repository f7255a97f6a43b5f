#include "algorithms/h2o_prefill.hpp"

#include <algorithm>

#include "algorithms/attended_cache.hpp"

namespace kvbench {
namespace {

// Of `held`, which has one token more than may stay.
Eviction lightest_of(const AttendedCache& cache, const std::vector<Index>& held,
                     const EvictionRules& rules) {
  // Sinks lie before every held token.
  const auto begin = cache.slots().lower_bound(held.front());
  const auto candidates = static_cast<Index>(held.size()) - rules.protected_recent;
  auto lightest = begin;
  auto it = begin;
  for (Index i = 0; i < candidates; ++i, ++it) {
    if (cache.score(it->second) <= cache.score(lightest->second)) {
      lightest = it;
    }
  }
  Eviction out;
  out.token = lightest->first;
  out.score = cache.score(lightest->second);
  for (it = std::next(lightest); out.after_count < rules.after && it != cache.slots().end(); ++it) {
    out.after_sum += cache.score(it->second);
    ++out.after_count;
  }
  return out;
}

}  // namespace

std::vector<Index> stream_evictions(const Task& task, const EvictionRules& rules,
                                    const OnEviction& on_eviction) {
  if (task.count() <= rules.kept) {
    return {task.tokens.begin(), task.tokens.end()};
  }
  if (rules.kept == 0) {
    return {};
  }
  AttendedCache cache(task.head, task.sink + rules.kept + 1, rules.reduce);
  for (Index i = 0; i < task.sink; ++i) {
    cache.add_unscored(i);
  }
  std::vector<Index> held;
  for (const Index j : task.tokens) {
    cache.add(j);
    held.push_back(j);
    if (task.scoring.contains(j) && j >= task.head.q_start()) {
      cache.attend(j);
    }
    if (static_cast<Index>(held.size()) <= rules.kept) {
      continue;
    }
    const Eviction gone = lightest_of(cache, held, rules);
    cache.remove(gone.token);
    held.erase(std::lower_bound(held.begin(), held.end(), gone.token));
    on_eviction(gone, held);
  }
  return held;
}

}  // namespace kvbench
