// Descriptions of a plan for --dry-run and for the log of a run.
#pragma once

#include <string>

#include "replay/plan.hpp"

namespace kvbench {

/// Prints jobs, rows and memory of a plan to stdout: in total, by algorithm and by KV head.
void print_plan(const Plan& plan);

/// The values of parameter ranges: "ranges: T=1:5 is 1, 2, 3, 4"; empty without ranges.
std::string ranges_line(const PlanSpec& plan);

}  // namespace kvbench
