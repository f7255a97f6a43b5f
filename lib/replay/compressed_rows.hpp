// A method's result as memory figures and as parts of attention sums.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/backend.hpp"
#include "attention/estimator.hpp"
#include "metrics/memory.hpp"

namespace kvbench {

/// What is held, for memory_figures.
Holding holding_of(const Compressed& c);

/// Returns what a method holds as parts of sums, numerator and denominator; all of them, also empty
/// ones. `first`: 0, 1, ..., at least as many as there are made tokens; `queries`: how many of the
/// last attend, of which a window hides some rows. The parts point into the first three arguments.
std::vector<WeightedRows> weighted_rows(const KvHead& head, const Compressed& c,
                                        std::span<const Index> first, Index queries);

/// Adds what a method holds, numerator and denominator.
void add_compressed(const Backend& backend, SoftmaxSums& sums, const KvHead& head,
                    const Compressed& c);

}  // namespace kvbench
