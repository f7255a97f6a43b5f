// Whether a plan may resume an existing table. --resume requires the same plan, --extend one that
// contains it.
#pragma once

#include <string>

#include "replay/plan_spec.hpp"
#include "report/manifest.hpp"

namespace kvbench {

/// Compares the plan with the earlier run `then`. `now`: the manifest of this run. Returns whether
/// the plans are the same. Throws InputError naming the options that differ (got, expected), or if
/// the contents of the traces differ.
bool check_resumable(const PlanSpec& plan, const Manifest& then, const Manifest& now);

}  // namespace kvbench
