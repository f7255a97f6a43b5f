// What the jobs of both protocols share: guarded runs, and a row's status and diagnostics.
#pragma once

#include <functional>
#include <string>

#include "algorithms/contract.hpp"
#include "metrics/error.hpp"
#include "replay/head_input.hpp"
#include "replay/job_result.hpp"

namespace kvbench {

/// Returns what `measure` makes of blank rows. An exception of the method becomes the rows' status.
/// Throws IoError where the device or memory fails.
JobResult run_guarded(const HeadInput& c, const Entry& entry,
                      const std::function<void(JobResult&)>& measure);

/// Why a measured row is not a fair measurement, beside what the method itself reports; or empty.
std::string unfair(const HeadInput& c, const Entry& entry, bool empty_middle);

/// Status of a measured row: `degenerate` of the row's m queries had no denominator; `reason`: why
/// else the row is not a fair measurement, or empty.
std::string status_of(const ErrorFigures& errors, Index degenerate, Index m,
                      const std::string& reason);

/// The `diag` column: the method's own figures; and, where the trace holds fewer queries to score
/// with than the method asks for, how many it asks for.
std::string diag_text(const HeadInput& c, const Entry& entry, const Compressed& result);

}  // namespace kvbench
