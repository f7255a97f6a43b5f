// Orthogonal matching pursuit with bounded weights: attention-matching's keys=omp.
#pragma once

#include <span>
#include <vector>

#include "attention/inner_products.hpp"

namespace kvbench {

/// Returns `count` columns of E [R, m], ascending, chosen one at a time: the column with the
/// largest inner product with the residual y - E_S w (not normalised; ties to the lowest), then all
/// weights are refitted: argmin |E_S w - y|^2 over low <= w <= high. No column is dropped. E and y
/// finite and >= 0; 0 <= low <= high; count <= m. An active set fits the weights; it changes little
/// between choices, so its Cholesky factor is updated. Time O(count (R m + R count + count^2)),
/// memory O(R m + R count + count^2).
std::vector<Index> matching_pursuit(const MatrixD& e, std::span<const double> y, Index count,
                                    double low, double high);

}  // namespace kvbench
