#include "algorithms/h2o_prefill.hpp"

#include <algorithm>

#include "algorithms/evicting_cache.hpp"

namespace kvbench {
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
