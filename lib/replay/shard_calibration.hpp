// Times of a plan's jobs from a calibration: a result table of the same entries on some heads.
#pragma once

#include "replay/plan_spec.hpp"
#include "replay/shard_costs.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// Rows of the calibration belong to an entry of the plan by algorithm, params and budget, whatever
/// the seed. Rows of another protocol or kind of device are ignored. For a job of g query heads, a
/// row of n tokens gives
///
///     t = compress_ms + g * n_queries * attend_us_per_query     (0 s where it is infeasible)
///
/// and the entry's time at n is the median of its rows. At other lengths it is the time at the
/// nearest n of the table times (n' / n)^p, where p is fitted for each algorithm by least squares
/// of log t over log n within its entries; 1 where the table has one n. An entry that the table
/// lacks gets the median of the others. Times are whole nanoseconds: equal plans and tables give
/// equal shards on every machine.
///
/// Throws InputError (table, row, column, got, expected): a missing column, a schema of another
/// major version, a bad time, no row with a time of an entry of the plan, more time than 64 bits
/// hold.
ShardCosts calibrated(const PlanSpec& plan, const Table& calibration);

}  // namespace kvbench
