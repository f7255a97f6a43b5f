// Orthogonal matching pursuit with bounded weights: attention-matching's keys=omp.
#pragma once

#include <span>
#include <vector>

#include "attention/inner_products.hpp"

namespace kvbench {

/// Chooses `count` columns of E [R, m], one at a time: the column, not chosen yet, with the largest
/// inner product with the residual y - E_S w (not divided by its norm; ties to the lowest), then
/// all weights of the chosen anew: argmin |E_S w - y|^2 over low <= w <= high. None is dropped.
/// Returns their numbers, ascending. E and y finite and at least 0; 0 <= low <= high; count <= m.
/// The weights are an active set's: from one choice to the next it changes little, and its Cholesky
/// factor is updated. Time O(count (R m + R count + count^2)), memory O(R m + R count + count^2).
std::vector<Index> matching_pursuit(const MatrixD& e, std::span<const double> y, Index count,
                                    double low, double high);

}  // namespace kvbench
