// Methods that keep the whole middle of a head, or nothing of it.
#pragma once

#include <algorithm>

#include "algorithms/shared/size.hpp"

namespace kvbench {

/// Marks all shares: no head fits the common budget.
inline void mark_none_fits(std::vector<Share>& shares) {
  const auto none_fits = std::make_shared<const std::vector<double>>();
  for (Share& share : shares) {
    share.data = none_fits;
  }
}

/// Holds all tokens if the share covers them, otherwise none. Degenerate with `reason` after
/// mark_none_fits.
inline Compressed whole_or_nothing(const Task& task, const Share& own, const char* reason) {
  Compressed out = own.tokens >= task.count() ? hold(task.tokens) : Compressed();
  out.degenerate = own.data ? reason : "";
  return out;
}

}  // namespace kvbench
