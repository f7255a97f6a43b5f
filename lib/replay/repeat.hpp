// --repeat: a job run again and again, for its times alone.
#pragma once

#include <functional>

#include "replay/job_result.hpp"

namespace kvbench {

/// What `job` gives. With `times` above 1 it runs once to warm up, then `times` times: the rows'
/// times are the medians of these, beside their interquartile ranges, and so is an exported
/// cache's. A job whose rows were not measured runs once. One result is in memory at a time.
JobResult repeat_job(Index times, const std::function<JobResult()>& job);

}  // namespace kvbench
