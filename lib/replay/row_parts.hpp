// Shared by the jobs of all protocols: exceptions of methods, what is measured of outputs,
// diagnostics.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "metrics/error.hpp"
#include "replay/head_input.hpp"
#include "replay/job_result.hpp"

namespace kvbench {

/// Calls `measure` with blank rows of the entry and returns what it fills in. If it throws, returns
/// the blank rows with status `infeasible` or `failed`. Throws OutOfMemory, and IoError if the
/// device fails.
JobResult run_guarded(const HeadInput& c, const Entry& entry,
                      const std::function<void(JobResult&)>& measure);

/// Returns blank rows with status kLackedMemory.
JobResult lacking_memory(const HeadInput& c, const Entry& entry);

/// Returns why the input makes measured rows degenerate, or "".
std::string degenerate_reason(const HeadInput& c, const Entry& entry, bool empty_middle);

/// Returns [n]: 1 for sinks, recent tokens and `tokens`.
std::vector<std::uint8_t> held_flags(const HeadInput& c,
                                     std::initializer_list<std::span<const Index>> tokens);

/// Measures the estimated outputs `z` [m, dv] of a row's query head: errors and status of the row,
/// its errors by query, its part of the layer's error if the plan has one. `log_denominator` [m]:
/// as in SoftmaxSums; `reason`: why the row is degenerate in any case, or "".
void add_outputs(const HeadInput& c, const ExactAttention& truth, const ValueNorms& norms,
                 const MatrixD& z, const std::vector<double>& log_denominator,
                 const std::string& reason, Row& row, JobResult& out);

/// Returns the `diag` column: the method's diagnostics `diag`, and how many scoring queries it asks
/// for if the trace has fewer.
std::string diag_text(const HeadInput& c, const Entry& entry, Figures diag);

}  // namespace kvbench
