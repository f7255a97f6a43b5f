// The clock that times jobs and runs.
#pragma once

#include <chrono>

namespace kvbench {

/// Returns seconds of a monotonic clock.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace kvbench
