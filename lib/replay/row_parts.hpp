// What the jobs of both protocols share: a row's parts, and how a method's result enters the sums.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "attention/estimator.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "replay/job.hpp"

namespace kvbench {

/// A row with its key and descriptive columns; nothing measured yet.
Row blank_row(const Plan& plan, const Unit& unit, const Entry& entry, Index q_head);

/// Seconds of a clock that only goes forward.
double seconds_now();

/// What `measure` makes of blank rows. Never throws for what a method does: that becomes the rows'
/// status. Throws IoError where the device fails.
JobResult run_guarded(const HeadInput& c, const Entry& entry,
                      const std::function<void(JobResult&)>& measure);

/// What else than a method's own word makes a measured row no fair measurement; or empty.
std::string unfair(const HeadInput& c, const Entry& entry, bool empty_middle);

/// Status of a measured row: `degenerate` of the row's m queries had no denominator; `reason`: what
/// else makes the row no fair measurement, or empty.
std::string status_of(const ErrorFigures& errors, Index degenerate, Index m,
                      const std::string& reason);

/// The `diag` column: the method's own figures; and, where the trace holds fewer queries to score
/// with than the method asks for, how many it asks for.
std::string diag_text(const HeadInput& c, const Entry& entry, const Compressed& result);

/// What is held, for memory_figures.
Holding holding_of(const Compressed& c);

/// What a method holds as parts of sums, numerator and denominator; all of them, also empty ones.
/// `first`: 0, 1, ..., at least as many as there are made tokens; `queries`: how many of the last
/// attend, of which a window hides some rows. The parts point into the first three.
std::vector<WeightedRows> weighted_rows(const KvHead& head, const Compressed& c,
                                        std::span<const Index> first, Index queries);

/// Adds what a method holds, numerator and denominator.
void add_compressed(const Backend& backend, SoftmaxSums& sums, const KvHead& head,
                    const Compressed& c);

}  // namespace kvbench
