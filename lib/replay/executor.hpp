// Runs a plan's jobs on its threads and device.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "replay/job_result.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Where an Executor delivers.
struct JobSink {
  std::function<void(Index job, const JobResult&)> write;  ///< must be thread-safe
  std::function<void()> between_waves;                     ///< called while no thread reads a trace
};

class Executor {
 public:
  /// `stop`: once it is true, no further job begins. The references must outlive the object.
  Executor(const Plan& plan, int threads, const std::atomic<bool>& stop);

  /// Reads every value that the plan's jobs will read, before the first row is written. Throws
  /// InputError for a bad value and for one that a job would reject.
  void check_values() const;

  /// Runs the jobs, ascending, and delivers each once. Holds the heads of one wave and, on a
  /// device, of the next. Throws what sink throws, and IoError where a device or memory fails.
  void run(const std::vector<Index>& jobs, const JobSink& sink) const;

 private:
  const Plan& plan_;
  int threads_;
  const std::atomic<bool>& stop_;
};

}  // namespace kvbench
