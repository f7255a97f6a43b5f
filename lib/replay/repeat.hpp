// --repeat: repeated runs of a job, for its times.
#pragma once

#include <functional>

#include "replay/job_result.hpp"

namespace kvbench {

/// Returns the result of `job`. If `times` > 1, the job runs once to warm up, then `times` times.
/// The rows then have medians and interquartile ranges of the times, an exported cache the median.
/// A job without measured rows runs once. One result is in memory at a time.
JobResult repeat_job(Index times, const std::function<JobResult()>& job);

}  // namespace kvbench
