// Least squares whose unknowns lie within bounds: the weights of attention-matching.
#pragma once

#include <span>
#include <vector>

#include "attention/inner_products.hpp"

namespace kvbench {

struct BoundedFit {
  std::vector<double> w;   ///< [B], each within its bounds
  double objective = 0.0;  ///< |E w - y|^2
  double gap = 0.0;        ///< at least objective - the optimum, certified by the gradient
};

/// argmin |E w - y|^2 over low <= w_j <= high. E [R, B], y [R], finite; 0 <= low <= high; R may be
/// 0 and columns may be zero, equal or dependent.
/// Where the optimum is not unique, one near the optimum closest to w = 1 is returned.
/// First by an active set (bounded_active_set.hpp), in a tenth of the time where the optimum leaves
/// few weights free. Where that is not the way, by a primal-dual interior-point method (Mehrotra's
/// predictor and corrector): some twenty Newton systems however badly the columns are conditioned,
/// each one Cholesky factorisation of the smaller side, min(R, B). The gap follows from convexity:
/// f(w) - f* <= max over the box of <grad f(w), w - v>. It ends with gap <= 1e-7 objective (active
/// set: 1e-9), or where rounding lets the gap fall no further. Time O(R B min(R, B)) once plus
/// O(min(R, B)^3) an iteration where B <= R, else O(R^2 B) an iteration. Memory
/// O(R B + min(R, B)^2). float64 in a fixed order of summation; for B > R the Newton systems are
/// summed in float32 and refined in float64 for as long as that converges.
BoundedFit bounded_least_squares(const MatrixD& e, std::span<const double> y, double low,
                                 double high);

}  // namespace kvbench
