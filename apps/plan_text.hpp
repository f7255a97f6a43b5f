// What --dry-run prints, and what a run says of its plan.
#pragma once

#include <string>

#include "replay/plan.hpp"

namespace kvbench {

/// To stdout: how many jobs and rows there are, by algorithm as well, what they need of memory, and
/// of time where the plan has costs.
void print_plan(const Plan& plan);

/// What the ranges of parameters became: "ranges: T=1:5 is 1, 2, 3, 4"; empty without ranges.
std::string ranges_line(const PlanSpec& plan);

/// A note on ranges whose end a version before 0.2 would have included; else empty.
std::string ranges_note(const PlanSpec& plan);

}  // namespace kvbench
