// What an earlier run of the same plan left in a result file.
#pragma once

#include <cstdint>
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
  Index row_count() const;
  /// The rows of all whole jobs in the plan's order.
  std::vector<Fields> in_order() const;

 private:
  std::unordered_map<Index, std::vector<Fields>> rows_;
  Range jobs_;
};

/// Key columns of the row that `job` makes for query head `q_head`, joined as row_key does.
std::string planned_key(const Plan& plan, Index job, Index q_head);

}  // namespace kvbench
