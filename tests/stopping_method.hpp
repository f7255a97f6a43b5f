// A method that counts its calls and stops the run when it is told to, and runs of it.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "algorithms/contract.hpp"
#include "core/rng.hpp"
#include "replay/planner.hpp"
#include "replay/run.hpp"

namespace kvbench::testing_replay {

inline std::atomic<bool> stop_now = false;  // what the run looks at
inline std::mutex calls_mutex;
inline int calls_left = -1;  // until the run is stopped; negative: it is not
inline int calls_made = 0;

/// Counted and stopped at once: after the last call only those begin that another thread had
/// already been given.
inline void count_call() {
  const std::lock_guard lock(calls_mutex);
  ++calls_made;
  if (--calls_left == 0) {
    stop_now = true;
  }
}

/// A random half of the tokens.
inline Compressed stopping(const Task& task, const Params&) {
  count_call();
  Compressed c;
  RngStream random = task.rng.stream("sample");
  for (const Index i : sample_without_replacement(random, task.count(), task.count() / 2)) {
    c.held.tokens.push_back(task.tokens[i]);
  }
  return c;
}

/// `stopping` on the first KV head; of the second nothing fits.
inline Compressed unfit(const Task& task, const Params& params) {
  if (task.kv_head == 1) {
    throw Infeasible("on purpose", 1);
  }
  return stopping(task, params);
}

/// The plan of `o` with this method alone, `seeds` times.
inline Plan plan_of_seeds(const ReplayOptions& o, const Method& method, std::uint64_t seeds) {
  ReplayOptions some = o;
  some.algorithms = {"exact"};
  Plan plan = make_plan(some);
  plan.variants = {{&method, Params(method.info.name, {}, {})}};
  plan.entries.clear();
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    plan.entries.push_back({0, std::nullopt, seed});
  }
  return plan;
}

/// Runs until the method was called so often; -1: to the end.
inline RunResult run_until(const Plan& plan, int calls = -1) {
  stop_now = false;
  calls_left = calls;
  calls_made = 0;
  return run_plan(plan, "test", stop_now);
}

}  // namespace kvbench::testing_replay
