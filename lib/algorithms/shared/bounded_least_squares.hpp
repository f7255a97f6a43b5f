// Least squares with bounds: the weights of attention-matching.
#pragma once

#include <span>

#include "algorithms/shared/bounded_active_set.hpp"
#include "attention/inner_products.hpp"

namespace kvbench {

/// Returns argmin |E w - y|^2 over low <= w_j <= high. E [R, B] and y [R] finite; 0 <= low <= high;
/// R may be 0; columns may be dependent. If the optimum is not unique, the result is near the one
/// closest to w = 1. An active set is tried first (bounded_active_set.hpp), ten times faster if few
/// weights are free; then a primal-dual interior-point method (Mehrotra's predictor-corrector),
/// about twenty Cholesky factorisations of side min(R, B) at any conditioning. The gap follows from
/// convexity: f(w) - f* <= max over v in the box of <grad f(w), w - v>. Stops at gap <= 1e-7
/// objective (active set: 1e-9) or at rounding. Time O(R B min(R, B)) once, plus O(min(R, B)^3) an
/// iteration if B <= R, O(R^2 B) otherwise. Memory O(R B + min(R, B)^2). float64 in a fixed order;
/// for B > R the Newton systems are summed in float32 and refined in float64 while that converges.
BoundedFit bounded_least_squares(const MatrixD& e, std::span<const double> y, double low,
                                 double high);

}  // namespace kvbench
