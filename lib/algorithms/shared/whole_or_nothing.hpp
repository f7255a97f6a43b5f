// Methods that share whole heads: each keeps all of its middle, or nothing of it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "algorithms/shared/size.hpp"

namespace kvbench {

/// Marks every head's share: nothing fits the common budget.
inline void mark_none_fits(std::vector<Share>& shares) {
  const auto none_fits = std::make_shared<const std::vector<double>>();
  for (Share& share : shares) {
    share.data = none_fits;
  }
}

/// All of the task's tokens where the share has them, else none; degenerate with `reason` where
/// mark_none_fits was called.
inline Compressed whole_or_nothing(const Task& task, const Share& own, const char* reason) {
  Compressed out = own.tokens >= task.count() ? hold(task.tokens) : Compressed();
  out.degenerate = own.data ? reason : "";
  return out;
}

}  // namespace kvbench
