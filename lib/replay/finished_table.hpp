// What an earlier run of the same plan left in a result file and in the tables beside it.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "replay/plan_spec.hpp"
#include "report/csv.hpp"
#include "report/table_reader.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

/// Tables beside OUT.csv that this plan writes, but for OUT.layers.csv: its lines are not one
/// job's.
std::vector<const TableSpec*> side_tables(const PlanSpec& plan);

/// What tells the lines of one row of a table with steps apart, ascending (TableSpec::step), in a
/// layer; {0} of other tables.
std::vector<Index> side_positions(const PlanSpec& plan, const TableSpec* table,
                                  const LayerMeta& layer);

/// Lines of a table, matched with the jobs that make them. Each takes eight bytes: the line itself
/// stays in the file.
class FinishedTable {
 public:
  /// Of this shard's jobs. The lines of main_table() are rows.
  FinishedTable(const PlanSpec& plan, const TableSpec* table);
  FinishedTable(FinishedTable&&) = default;  // a copy's places would lead into the first one

  /// Takes the reader's row. Throws InputError where it belongs to no job of this shard or to none
  /// of its steps, or stands twice.
  void add(const TableReader& line);

  /// Whether there is a line of the job; of a table without steps, of the first job of its key.
  bool has(Index job) const;
  /// Whether there are all lines of the job that a measured row calls for.
  bool whole(Index job) const;
  /// Of OUT.csv and a job that is whole: status_kind() of its first row.
  std::string_view status(Index job) const;
  /// The job is done again.
  void forget(Index job);
  Index line_count() const { return count_; }
  /// Of OUT.csv: rows of this status_kind().
  Index count_of(std::string_view status) const;
  /// Whether all lines that were given are left.
  bool whole_file() const { return count_ == given_; }
  /// Whether they stand in the plan's order as well, each row's steps ascending.
  bool as_given() const { return in_order_ && whole_file(); }
  /// Puts the lines that are left into that order; `writer`: of the table that was read. Where it
  /// holds lines of an earlier run, all become lines of the writer's run.
  void rewrite(CsvWriter& writer) const;

 private:
  // Where lines have their places: those of a unit's jobs follow each other, a job's by rows, a
  // row's by steps.
  struct Places {
    Index begin = 0;  // of the unit's first job in the shard
    Index job = 0;    // that one
    Index rows = 0;   // of a job in this table; 0: lines of an earlier unit stand for this one
    const std::vector<Index>* steps = nullptr;

    Index per_job() const { return rows * std::ssize(*steps); }
  };

  void list_places();
  std::size_t row_column(std::size_t cell) const;
  bool is_of(const Fields& line, Index unit, Index q_head, const Entry& entry, std::size_t setting);
  std::optional<std::pair<Index, Index>> find(const Fields& line);
  const Places& places_of(Index job) const;
  std::span<const std::uint64_t> lines_of(Index job) const;
  [[noreturn]] void refuse(const std::string& what, const Fields& line) const;

  const PlanSpec& plan_;
  const TableSpec* table_;
  Range jobs_;

  std::vector<std::pair<std::size_t, std::size_t>> compared_;  // cells of a line, columns of a row
  std::vector<std::size_t> unit_cells_;
  std::vector<std::size_t> setting_cells_;
  std::size_t seed_cell_ = 0;
  std::unordered_map<std::string, std::pair<Index, Index>> units_at_;  // and row of the job
  std::unordered_map<std::string, std::vector<std::size_t>> settings_at_;
  Fields expected_;                                   // of the row that the last line belongs to
  std::pair<Index, std::size_t> expected_of_{-1, 0};  // its unit and setting

  Index first_unit_ = 0;
  std::vector<Places> units_;                                    // of the shard
  std::map<std::pair<Index, Index>, std::vector<Index>> steps_;  // by tokens and queries
  std::vector<std::uint64_t> lines_;  // by place: where in the file, 0 if absent; and the status
  Index count_ = 0;
  Index given_ = 0;
  Index last_ = -1;  // place of the last line
  bool in_order_ = true;
};

}  // namespace kvbench
