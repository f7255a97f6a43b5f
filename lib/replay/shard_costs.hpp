// Estimated times of a plan's jobs, and shards of equal time (--shard-costs).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

class ShardCosts {
 public:
  /// Nanoseconds of one thread before each entry of a unit; last: of all entries.
  using Times = std::shared_ptr<const std::vector<Index>>;

  /// `entries`: of a unit, >= 1. `units`: of each, with entries + 1 times that never fall. `notes`:
  /// lines for the terminal.
  ShardCosts(Index entries, std::vector<Times> units, std::vector<std::string> notes);

  /// Nanoseconds of one thread, of these jobs one after the other.
  Index nanoseconds(Range jobs) const { return before(jobs.end) - before(jobs.begin); }

  /// Where part i of `count` ends and part i + 1 begins: the job before which the time is nearest
  /// to i / count of the whole, the earliest of equals; 0 for i = 0, all jobs for i = count. It
  /// never falls with i.
  Index boundary(Index i, Index count) const;

  /// Lines for the terminal: which entries the calibration lacks.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Index before(Index job) const;            // nanoseconds of all earlier jobs
  Index first_at(Index nanoseconds) const;  // first job before which so much is done

  Index per_unit_ = 0;             // entries
  std::vector<Index> units_{0};    // nanoseconds before each unit; last: of all jobs
  std::vector<Times> entries_of_;  // of each unit
  std::vector<std::string> notes_;
};

}  // namespace kvbench
