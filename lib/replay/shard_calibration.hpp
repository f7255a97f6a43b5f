// Estimates the times of a plan's jobs from a result table of the same entries on some heads.
#pragma once

#include "replay/plan_spec.hpp"
#include "replay/shard_costs.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// Rows match an entry by algorithm, params and budget; the seed is ignored, and so are rows of
/// another protocol or kind of device. For a job of g query heads, a row of n tokens gives
///
///     t = compress_ms + g * n_queries * attend_us_per_query     (0 if infeasible)
///
/// The entry's time at n is the median of its rows. At another length n' it is the time at the
/// nearest n times (n' / n)^p. p is fitted per algorithm by least squares of log t over log n
/// within entries, clamped to [0, 3]; 1 if the table has one n. An entry without rows gets the
/// median of the others. Times are whole nanoseconds, so that shards are equal on every machine.
///
/// Throws InputError (table, row, column, got, expected): missing column, schema of another major
/// version, bad time, no row with a time for the plan, total above 64 bits.
ShardCosts calibrated(const PlanSpec& plan, const Table& calibration);

}  // namespace kvbench
