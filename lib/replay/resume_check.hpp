// Whether a plan may resume an existing table: --resume requires the plan that began it, --extend a
// plan that has all of it and more.
#pragma once

#include <string>

#include "replay/plan_spec.hpp"
#include "report/manifest.hpp"

namespace kvbench {

/// Compares the plan with the manifest beside options.out; `now`: the manifest of this run. Returns
/// the run whose rows the tables may hold and that are to become this run's: empty unless the plan
/// extends another. Throws InputError naming the options that differ, their values there and here,
/// and where the contents of the traces differ.
std::string check_resumable(const PlanSpec& plan, const Manifest& now);

}  // namespace kvbench
