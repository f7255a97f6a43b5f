// A method that counts its calls and stops the run when it is told to.
#pragma once

#include <atomic>
#include <mutex>

#include "algorithms/contract.hpp"
#include "core/rng.hpp"

namespace kvbench::testing_replay {

inline std::atomic<bool> stop_now = false;  // what the run looks at
inline std::mutex calls_mutex;
inline int calls_left = -1;  // until the run is stopped; negative: it is not
inline int calls_made = 0;

/// A random half of the tokens.
inline Compressed stopping(const Task& task, const Params&) {
  {
    // Counted and stopped at once: after the last call only those begin that another thread had
    // already been given.
    const std::lock_guard lock(calls_mutex);
    ++calls_made;
    if (--calls_left == 0) {
      stop_now = true;
    }
  }
  Compressed c;
  RngStream random = task.rng.stream("sample");
  for (const Index i : sample_without_replacement(random, task.count(), task.count() / 2)) {
    c.held.tokens.push_back(task.tokens[static_cast<std::size_t>(i)]);
  }
  return c;
}

}  // namespace kvbench::testing_replay
