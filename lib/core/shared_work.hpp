// Work of one job on threads that have no job: a run of one head, or the last jobs of a run, use
// the whole machine. Partitions are fixed and sums joined in order, so results have the same bits
// for any number of threads.
#pragma once

#include <atomic>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Threads of this process that wait: those of parallel_for without a task, and those that wait for
/// another thread's result. A thread that shares its work starts as many helpers.
class IdleThreads {
 public:
  static void add(int count);
  /// Takes one; returns whether there was one.
  static bool take();
};

/// Counts this thread as idle during its life.
class IdleScope {
 public:
  IdleScope() { IdleThreads::add(1); }
  ~IdleScope() { end(); }
  IdleScope(const IdleScope&) = delete;
  IdleScope& operator=(const IdleScope&) = delete;
  void end() {
    if (std::exchange(open_, false)) {
      IdleThreads::add(-1);
    }
  }

 private:
  bool open_ = true;
};

/// Calls work(i) for i = 0 .. count - 1, each once, on this thread and on idle ones, which join
/// while they are free. Calls start in ascending order. After an exception no further call starts;
/// the first is rethrown. `work` must be safe to call at the same time for different i.
template <class Work>
void share_work(Index count, const Work& work) {
  std::atomic<Index> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto run_next = [&] {
    const Index i = next++;
    if (i >= count) {
      return false;
    }
    try {
      work(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      error = error ? error : std::current_exception();
    }
    return true;
  };
  std::vector<std::thread> helpers;
  do {
    while (next + 1 < count && IdleThreads::take()) {
      try {
        helpers.emplace_back([&] {
          while (run_next()) {
          }
          IdleThreads::add(1);
        });
      } catch (const std::exception&) {  // no more threads or memory: go on with these
        IdleThreads::add(1);
        break;
      }
    }
  } while (run_next());
  for (std::thread& helper : helpers) {
    helper.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

/// Scratch of the calls of one share_work that run at the same time: allocated once per thread, not
/// once per call.
template <class T>
class ScratchPool {
 public:
  /// One that is free, or a new one.
  std::unique_ptr<T> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<T>();
    }
    auto out = std::move(free_.back());
    free_.pop_back();
    return out;
  }
  void give(std::unique_ptr<T> one) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(one));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

/// Calls add(i, compute(i)) for i = 0 .. count - 1: compute as share_work does, add in ascending
/// order, one at a time.
template <class Compute, class Add>
void share_in_order(Index count, const Compute& compute, const Add& add) {
  constexpr Index kBroken = std::numeric_limits<Index>::max();
  std::atomic<Index> turn = 0;
  share_work(count, [&](Index i) {
    try {
      auto part = compute(i);
      for (Index now = turn; now != i; now = turn) {
        if (now == kBroken) {
          return;
        }
        turn.wait(now);
      }
      add(i, std::move(part));
      Index mine = i;  // a part after this one may have failed meanwhile: then kBroken stays
      turn.compare_exchange_strong(mine, i + 1);
    } catch (...) {
      turn = kBroken;
      turn.notify_all();
      throw;
    }
    turn.notify_all();
  });
}

}  // namespace kvbench
