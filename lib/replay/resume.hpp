// What an earlier run of the same plan left in a result file and in the tables beside it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "replay/plan.hpp"
#include "report/csv.hpp"
#include "report/side_table.hpp"

namespace kvbench {

/// Tables beside OUT.csv that this plan writes, but for OUT.layers.csv: its lines are not one
/// job's.
std::vector<const SideTable*> side_tables(const Plan& plan);

/// Lines of a table, matched with the jobs that make them.
class FinishedTable {
 public:
  /// Of this shard's jobs. `table`: null is OUT.csv, whose lines are rows. Errors: InputError where
  /// a line belongs to no job of this shard or to none of its steps, or stands twice.
  FinishedTable(const Plan& plan, const SideTable* table, std::vector<Fields> lines);

  /// Whether there is a line of the job; of a table without steps, of the first job of its key.
  bool has(Index job) const { return lines_.contains(job); }
  /// Whether there are all lines of the job that a measured row calls for.
  bool whole(Index job) const;
  /// The first line of a job that is whole.
  const Fields& first(Index job) const { return lines_.at(job).front().front(); }
  /// The job is done again.
  void forget(Index job) { lines_.erase(job); }
  /// The lines of all jobs in the plan's order, each row's steps ascending, once; for these two the
  /// jobs that are not whole were forgotten.
  std::vector<Fields> take_in_order();
  Index line_count() const;
  /// Lines that were given, and whether all of them are left and stand in that order.
  Index given() const { return given_; }
  bool as_given() const { return in_order_ && line_count() == given_; }

 private:
  std::map<Index, std::vector<std::vector<Fields>>> lines_;  // by job, row (or all rows) and step
  Index given_ = 0;
  bool in_order_ = true;
};

class CacheExport;

/// Makes the tables, OUT.csv first, and the caches that are exported (null: none) agree: jobs of
/// which any lacks a part are forgotten in all tables.
void reconcile(const Plan& plan, std::span<FinishedTable> tables, const CacheExport* caches);

}  // namespace kvbench
