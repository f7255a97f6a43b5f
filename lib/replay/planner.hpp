// From options to a plan.
#pragma once

#include "replay/options.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Opens the traces and lists the jobs. Errors: InputError (bad option; a layer, head or prompt
/// that no trace has; a method without a size; two traces of one name; a stream of a layer whose
/// queries are not all stored; a named method that needs what a layer lacks; a calibration without
/// a row of the plan), IoError (device absent).
Plan make_plan(const ReplayOptions& options);

}  // namespace kvbench
