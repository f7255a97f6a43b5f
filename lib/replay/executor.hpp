// Runs a plan's jobs on its threads and device.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "replay/job_result.hpp"
#include "replay/kept_heads.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Receives the results of an Executor.
struct JobSink {
  std::function<void(Index job, const JobResult&)> write;  ///< called concurrently
  std::function<void()> between_waves;  ///< called after each wave while no thread reads a trace
};

class Executor {
 public:
  /// No job begins after `stop` becomes true. `plan` and `stop` must outlive the object.
  Executor(const Plan& plan, int threads, const std::atomic<bool>& stop);

  /// Reads everything that the plan's jobs will read, one head at a time, and keeps heads for
  /// run() (kept_bytes). Throws InputError for a value that is bad or that a job would reject. Call
  /// it before the first row is written.
  void check_values();

  /// Runs the jobs (ascending numbers) in waves of heads, and calls sink.write once for each. Holds
  /// the heads of one wave and, on a device, of the next. A job that gets no memory, also when it
  /// runs alone, has the status kLackedMemory. Throws what `sink` throws, IoError if a device
  /// fails, and std::bad_alloc if a head cannot be opened.
  void run(const std::vector<Index>& jobs, const JobSink& sink);

 private:
  const Plan& plan_;
  int threads_;
  const std::atomic<bool>& stop_;
  KeptHeads kept_;
};

}  // namespace kvbench
