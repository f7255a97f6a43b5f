// Rows and lines of a job in all tables, and which side tables a plan writes.
#pragma once

#include <string>
#include <vector>

#include "replay/job_result.hpp"
#include "replay/plan_spec.hpp"
#include "report/job_log.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

/// Returns a row of OUT.csv with key and descriptive columns, without measurements.
Row blank_row(const PlanSpec& plan, const Unit& unit, const Entry& entry, Index q_head);

/// Side tables that the plan writes, without OUT.layers.csv, whose lines belong to several jobs.
std::vector<const TableSpec*> side_tables(const PlanSpec& plan);

/// Lines of the table if every row of this shard is measured.
Index most_lines(const PlanSpec& plan, const TableSpec* table);

/// The record of a finished job, without its place and cache. `run`: the column run_id.
JobRecord job_record(const PlanSpec& plan, const JobResult& result, const std::string& run);

/// job_key() of a job that has not run.
std::string planned_key(const PlanSpec& plan, Index job);

}  // namespace kvbench
