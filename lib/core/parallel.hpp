// Independent tasks on several threads, with exceptions and cancellation.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

#include "core/shared_work.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Runs work(0) .. work(count - 1), each once, in any order, on at most `threads` threads. After
/// `stop` or an exception no further task starts; the first exception is rethrown. Threads without
/// a task help those that share their work (core/shared_work.hpp).
template <class Work>
void parallel_for(Index count, int threads, const std::atomic<bool>& stop, const Work& work) {
  std::exception_ptr error;
  std::mutex mutex;
  std::atomic<bool> broken = false;
  std::atomic<int> idle = 0;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 1) nowait
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
    IdleThreads::add(1);  // until the last task ends
    ++idle;
  }
  IdleThreads::add(-idle);
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace kvbench
