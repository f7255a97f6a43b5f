// Independent tasks on several threads, with exceptions and a way to stop.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

#include "core/types.hpp"

namespace kvbench {

/// work(0) .. work(count - 1), each once, in any order, on at most `threads` threads. Once `stop`
/// is true or a task has thrown, no further one is begun; the first exception is thrown on.
template <class Work>
void parallel_for(Index count, int threads, const std::atomic<bool>& stop, const Work& work) {
  std::exception_ptr error;
  std::mutex mutex;
  std::atomic<bool> broken = false;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index i = 0; i < count; ++i) {
    if (stop || broken) {
      continue;
    }
    try {
      work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = error ? error : std::current_exception();
      broken = true;
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace kvbench
