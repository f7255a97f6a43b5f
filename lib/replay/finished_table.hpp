// Lines that earlier runs of a plan left in OUT.csv or a side table.
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

/// Side tables that the plan writes, without OUT.layers.csv, whose lines belong to several jobs.
std::vector<const TableSpec*> side_tables(const PlanSpec& plan);

/// Steps of the lines of one row of OUT.csv in a table with steps (TableSpec::step), ascending; {0}
/// for other tables.
std::vector<Index> side_positions(const PlanSpec& plan, const TableSpec* table,
                                  const LayerMeta& layer);

/// Lines of a table, matched with the jobs of this shard. A line takes 8 bytes; its text stays in
/// the file.
class FinishedTable {
 public:
  /// `table`: main_table() for OUT.csv.
  FinishedTable(const PlanSpec& plan, const TableSpec* table);
  FinishedTable(FinishedTable&&) = default;  // not copyable: slots point into steps_

  /// Adds the reader's current line. Throws InputError if it belongs to no job or step of this
  /// shard, or is a duplicate.
  void add(const TableReader& line);

  bool has(Index job) const;
  /// Whether the table has all lines of the job, if its rows were measured.
  bool whole(Index job) const;
  /// status_kind() of the first row of a whole job. Only for OUT.csv.
  std::string_view status(Index job) const;
  void forget(Index job);
  Index line_count() const { return count_; }
  /// Rows with this status_kind(). Only for OUT.csv.
  Index count_of(std::string_view status) const;
  /// Whether no line was removed.
  bool complete() const { return count_ == added_; }
  /// Whether no line was removed, and lines were added in the plan's order.
  bool unchanged() const { return in_order_ && complete(); }
  /// Writes the lines in the plan's order. `writer`: of the table that was read. Lines of an
  /// earlier run become lines of the writer's run.
  void rewrite(CsvWriter& writer) const;

 private:
  // Slots of a unit's lines in lines_, by job, row and step.
  struct Slots {
    Index begin = 0;
    Index job = 0;   // the unit's first job in the shard
    Index rows = 0;  // per job; 0: an earlier unit has the same lines
    const std::vector<Index>* steps = nullptr;

    Index per_job() const { return rows * std::ssize(*steps); }
  };

  void list_slots();
  std::size_t row_column(std::size_t cell) const;
  bool is_of(const Fields& line, Index unit, Index q_head, const Entry& entry, std::size_t setting);
  std::optional<std::pair<Index, Index>> find(const Fields& line);
  const Slots& slots_of(Index job) const;
  std::span<const std::uint64_t> lines_of(Index job) const;
  [[noreturn]] void refuse(const std::string& what, const Fields& line) const;

  const PlanSpec& plan_;
  const TableSpec* table_;
  Range jobs_;

  std::vector<std::pair<std::size_t, std::size_t>> compared_;  // cell of a line, column of a row
  std::vector<std::size_t> unit_cells_;
  std::vector<std::size_t> setting_cells_;
  std::size_t seed_cell_ = 0;
  std::unordered_map<std::string, std::pair<Index, Index>> units_at_;  // unit and row
  std::unordered_map<std::string, std::vector<std::size_t>> settings_at_;
  Fields expected_;
  std::pair<Index, std::size_t> expected_of_{-1, 0};

  Index first_unit_ = 0;
  std::vector<Slots> units_;
  std::map<std::pair<Index, Index>, std::vector<Index>> steps_;  // by tokens and queries
  std::vector<std::uint64_t> lines_;  // by slot: file offset and status; 0 if absent
  Index count_ = 0;
  Index added_ = 0;
  Index last_ = -1;  // slot of the last line
  bool in_order_ = true;
};

}  // namespace kvbench
