// What --dry-run prints.
#pragma once

#include "replay/plan.hpp"

namespace kvbench {

/// To stdout: how many jobs and rows there are, by algorithm as well, what they need of memory, and
/// of time where the plan has costs.
void print_plan(const Plan& plan);

}  // namespace kvbench
