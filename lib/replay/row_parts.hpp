// Shared by the jobs of all protocols: exceptions of methods, a row's status and diagnostics.
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

/// Returns the status of a measured row. `degenerate` of its m queries have no denominator;
/// `reason`: another reason to call it degenerate, or "".
std::string status_of(const ErrorFigures& errors, Index degenerate, Index m,
                      const std::string& reason);

/// Returns [n]: 1 for sinks, recent tokens and `tokens`.
std::vector<std::uint8_t> held_flags(const HeadInput& c,
                                     std::initializer_list<std::span<const Index>> tokens);

/// Appends a row's errors by evaluated query. `exact`, `z` [m, dv].
void add_query_errors(const MatrixD& exact, const MatrixD& z, JobResult& out);

/// Writes the outputs of one query head, exact and estimated, both [m, dv], into the job's part of
/// its layer's error. Does nothing if the plan has no error of this layer.
void add_layer_part(const HeadInput& c, Index q_head, const MatrixD& exact, const MatrixD& estimate,
                    LayerPart& part);

/// Returns the `diag` column: the method's diagnostics, and how many scoring queries it asks for if
/// the trace has fewer.
std::string diag_text(const HeadInput& c, const Entry& entry, const Compressed& result);

}  // namespace kvbench
