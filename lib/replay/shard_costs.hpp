// Estimated times of a plan's jobs, and shards of equal time (--shard-costs). The times are those
// of a calibration: a result table of the same entries on a part of the heads.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/types.hpp"
#include "report/csv.hpp"

namespace kvbench {

struct Plan;

/// Rows of the calibration belong to an entry of the plan by algorithm, params and budget, whatever
/// the seed; those of another protocol or kind of device are left out. A row of n tokens says for a
/// job of g query heads
///
///     t = compress_ms + g * n_queries * attend_us_per_query     (0 s where it is infeasible)
///
/// and the entry's time at n is the median of its rows. At other lengths it is the time at the
/// nearest n of the table times (n' / n)^p, where p is fitted for each algorithm by least squares
/// of log t over log n within its entries; 1 where the table has one n. An entry that the table
/// lacks takes the median of the others. Times are whole nanoseconds: equal plans and tables give
/// equal shards on every machine.
class ShardCosts {
 public:
  /// Throws InputError (table, row, column, got, expected): a column is absent, a schema of another
  /// major version, a time that is none, no row with a time of an entry of the plan, more time
  /// than 64 bits hold.
  ShardCosts(const Plan& plan, const Table& calibration);

  /// Nanoseconds of one thread, of these jobs one after the other.
  Index nanoseconds(Range jobs) const { return before(jobs.end) - before(jobs.begin); }

  /// Where part i of `count` ends and part i + 1 begins: the job before which the time is nearest
  /// to i / count of the whole, the earliest of equals; 0 for i = 0, all jobs for i = count. It
  /// never falls with i.
  Index boundary(Index i, Index count) const;

  /// Lines for the terminal: which entries the table lacks.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Index before(Index job) const;            // nanoseconds of all earlier jobs
  Index first_at(Index nanoseconds) const;  // first job before which so much is done

  Index per_unit_ = 0;           // entries
  std::vector<Index> units_{0};  // nanoseconds before each unit; last: of all jobs
  // Nanoseconds before each entry of a unit, by its tokens and its query heads; last: of all.
  std::map<std::pair<Index, Index>, std::vector<Index>> entries_;
  std::vector<const std::vector<Index>*> entries_of_;  // of each unit
  std::vector<std::string> notes_;
};

}  // namespace kvbench
