// Whether a plan may resume an existing table. --resume requires the same plan, --extend one that
// contains it.
#pragma once

#include <string>

#include "replay/plan_spec.hpp"
#include "report/manifest.hpp"

namespace kvbench {

/// Compares the plan with the manifest beside options.out. `now`: the manifest of this run. Returns
/// the run_id of the run to extend, or "" if the plans are the same. Throws InputError naming the
/// options that differ (got, expected), or if the contents of the traces differ.
std::string check_resumable(const PlanSpec& plan, const Manifest& now);

}  // namespace kvbench
