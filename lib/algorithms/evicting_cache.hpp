// The tokens that H2O, CaM and TOVA hold in a stream, and which of them goes at each step, by the
// rules of attention/eviction_stream.hpp.
#pragma once

#include <memory>
#include <vector>

#include "algorithms/attended_cache.hpp"
#include "algorithms/contract.hpp"
#include "attention/eviction_stream.hpp"

namespace kvbench {

/// What goes of `outside`, the scored tokens held outside a recent window, ascending, of which
/// there is one more than may stay: the lightest but for rules.protected_recent, of equal ones the
/// latest.
Eviction lightest_of(const AttendedCache& cache, const std::vector<Index>& outside,
                     const EvictionRules& rules);

/// With a device the whole stream runs there when the object is made, and steps follow what came
/// back: the same evictions, scores and sums to the bit.
class EvictingCache {
 public:
  EvictingCache(const StreamTask& task, const EvictionRules& rules);

  /// Position j arrives; returns what goes. Positions come in order, from 0. Throws
  /// std::logic_error where `leaving` is not the token that a window of the rules' size loses, or
  /// -1 for a sink.
  Eviction step(Index j, Index leaving);

  /// Tokens held outside the window, ascending; no sinks.
  const std::vector<Index>& tokens() const { return outside_; }
  /// Tokens held, window and all, but no sinks: those that have a score.
  Index size() const { return size_; }

 private:
  EvictionRules rules_;
  std::unique_ptr<AttendedCache> cache_;  // null: `log_` says it all
  std::vector<Eviction> log_;
  std::vector<Index> outside_;
  Index size_ = 0;
};

}  // namespace kvbench
