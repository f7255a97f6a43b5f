// Shards of equal estimated time (--shard-costs).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

class ShardCosts {
 public:
  /// Nanoseconds of one thread before each entry of a unit, and of all entries: cumulative sums.
  using Times = std::shared_ptr<const std::vector<Index>>;

  /// `entries`: per unit, >= 1. `units`: for each unit entries + 1 ascending times. `notes`: lines
  /// for the terminal.
  ShardCosts(Index entries, std::vector<Times> units, std::vector<std::string> notes);

  /// Nanoseconds of one thread for these jobs.
  Index nanoseconds(Range jobs) const { return before(jobs.end) - before(jobs.begin); }

  /// First job behind part i of `count`: the one whose preceding time is nearest to i / count of
  /// the total; ties go to the lower job. 0 for i = 0, the number of jobs for i = count; ascending
  /// in i.
  Index boundary(Index i, Index count) const;

  /// Lines for the terminal: entries that the calibration lacks.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Index before(Index job) const;            // nanoseconds of all earlier jobs
  Index first_at(Index nanoseconds) const;  // first job with before(job) >= nanoseconds

  Index per_unit_ = 0;             // entries of a unit
  std::vector<Index> units_{0};    // nanoseconds before each unit, and of all units
  std::vector<Times> entries_of_;  // by unit
  std::vector<std::string> notes_;
};

}  // namespace kvbench
