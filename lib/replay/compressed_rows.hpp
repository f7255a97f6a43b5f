// A method's result as input of attention sums.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/backend.hpp"
#include "attention/estimator.hpp"

namespace kvbench {

/// Returns what a method holds as rows for numerator and denominator. The last `queries` queries
/// attend; a sliding window hides rows from them. `first`: 0, 1, ..., at least one per made entry.
/// The result points into the first three arguments; some rows may be empty.
std::vector<WeightedRows> weighted_rows(const KvHead& head, const Compressed& c,
                                        std::span<const Index> first, Index queries);

/// Adds what a method holds to `sums`, numerator and denominator.
void add_compressed(const Backend& backend, SoftmaxSums& sums, const KvHead& head,
                    const Compressed& c);

}  // namespace kvbench
