// What an earlier run of the same plan left in a result file, and in a stream's second one.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "replay/plan.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// Rows of a file, matched with the jobs that make them.
class Progressed {
 public:
  /// Matches `rows` with the plan's jobs of this shard. Rows of a job that is not whole are left
  /// out (the job is done again). Errors: InputError where a row belongs to no job of this shard,
  /// or stands twice.
  Progressed(const Plan& plan, const std::vector<Fields>& rows);

  bool done(Index job) const { return rows_.count(job) > 0; }
  /// Rows of a done job, one per query head of its unit.
  const std::vector<Fields>& rows(Index job) const { return rows_.at(job); }
  /// The job is done again.
  void forget(Index job) { rows_.erase(job); }
  Index row_count() const;
  /// The rows of all whole jobs in the plan's order.
  std::vector<Fields> in_order() const;

 private:
  std::unordered_map<Index, std::vector<Fields>> rows_;
  Range jobs_;
};

/// Rows of a stream's second table, matched with the jobs that make them.
class StepsProgressed {
 public:
  /// Matches `rows` with the rows of this shard's jobs. Errors: InputError where one belongs to no
  /// job of this shard or to none of its evaluated steps, or stands twice.
  StepsProgressed(const Plan& plan, std::vector<Fields> rows);

  /// Makes the two tables agree: jobs of which some evaluated step is missing, or that have steps
  /// though their rows say that nothing was measured, are forgotten in both.
  void settle(Progressed& main);

  Index row_count() const;
  /// The rows of all jobs in the plan's order, each head's steps ascending.
  std::vector<Fields> in_order() const;

 private:
  const Plan& plan_;
  std::map<Index, std::vector<std::vector<Fields>>> steps_;  // by job, query head and step
};

/// Key columns of the row that `job` makes for query head `q_head`, joined as row_key does.
std::string planned_key(const Plan& plan, Index job, Index q_head);

}  // namespace kvbench
