// What an earlier run of the same plan left in a result file and in the tables beside it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "replay/plan.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"
#include "report/side_table.hpp"

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

/// Tables beside OUT.csv that this plan writes, but for OUT.layers.csv: its lines are not one
/// job's.
std::vector<const SideTable*> side_tables(const Plan& plan);

/// Positions of the queries for which `table` gets lines, ascending, in a prompt of n tokens of
/// which the last nq have queries.
std::vector<Index> side_positions(const Plan& plan, const SideTable& table, Index n, Index nq);

/// Lines of a side table, matched with the jobs that make them.
class SideProgressed {
 public:
  /// Matches `lines` with the rows of this shard's jobs. Errors: InputError where one belongs to no
  /// job of this shard or to none of its steps, or stands twice.
  SideProgressed(const Plan& plan, const SideTable& table, std::vector<Fields> lines);

  /// Whether there is a line of the job; of a table without steps, of the first job of its key.
  bool has(Index job) const { return lines_.count(job) > 0; }
  /// Whether the job has every line that rows of this status call for, and no other.
  bool agrees(Index job, std::string_view status) const;
  /// The job is done again.
  void forget(Index job) { lines_.erase(job); }
  Index line_count() const;
  /// The lines of all jobs in the plan's order, each row's steps ascending.
  std::vector<Fields> in_order() const;

 private:
  std::map<Index, std::vector<std::vector<Fields>>> lines_;  // by job, row (or all rows) and step
};

class CacheExport;

/// Makes the tables, and the caches that are exported (null: none), agree: jobs of which any lacks
/// a part are forgotten in all tables.
void settle(const Plan& plan, Progressed& main, std::span<SideProgressed> sides,
            const CacheExport* caches);

}  // namespace kvbench
