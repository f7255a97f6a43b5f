// Times of jobs from a table, and their division into parts of equal time: the slow reference of
// --shard-costs, job by job.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench::reference {

/// A row with times: `setting` is what rows that differ in the seed and the head share.
struct TimedRow {
  Index setting = 0;
  Index tokens = 0;
  double compress_ms = 0.0;
  double attend_us_per_query = 0.0;
  Index queries = 0;
};

struct TimedJob {
  Index setting = 0;
  Index tokens = 0;
  Index q_heads = 0;
};

/// Seconds of each job. `algorithm_of`: of each setting; the exponent is that of its algorithm.
std::vector<double> job_seconds(const std::vector<TimedRow>& rows,
                                const std::map<Index, std::string>& algorithm_of,
                                const std::vector<TimedJob>& jobs);

/// First jobs of `count` parts, and the number of jobs: each boundary where the time before it is
/// nearest to its share, the earliest of equals.
std::vector<Index> equal_parts(const std::vector<Index>& nanoseconds, Index count);

}  // namespace kvbench::reference
