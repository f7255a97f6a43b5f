// A row of OUT.csv before its job has run.
#pragma once

#include "replay/plan_spec.hpp"
#include "report/schema.hpp"

namespace kvbench {

/// Returns a row with key and descriptive columns, without measurements.
Row blank_row(const PlanSpec& plan, const Unit& unit, const Entry& entry, Index q_head);

}  // namespace kvbench
