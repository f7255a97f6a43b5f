// From options to a plan.
#pragma once

#include "replay/plan.hpp"

namespace kvbench {

/// Opens the traces and lists the jobs. Throws InputError (bad option; a layer, head or prompt that
/// no trace has; a method without a size; duplicate trace names; a stream over a layer that does
/// not store all queries; a named method that needs what a layer lacks) or IoError (no such
/// device).
Plan make_plan(const ReplayOptions& options);

}  // namespace kvbench
