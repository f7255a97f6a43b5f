// Bounded least squares by an active set: fast if few weights are free at the optimum.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"

namespace kvbench {

struct BoundedFit {
  std::vector<double> w;   ///< [B], each within its bounds
  double objective = 0.0;  ///< |E w - y|^2
  double gap = 0.0;        ///< upper bound of objective - optimum, certified by the gradient
};

/// Returns argmin |E w - y|^2 + regular |w - 1|^2 over low <= w_j <= high, low < high. E and y as
/// in bounded_least_squares. Free weights solve their normal equations; a weight that meets a bound
/// becomes fixed. Each round frees the weights with the largest inward gradients, at most half as
/// many as are free. The objective falls every round.
/// Returns nullopt if the free columns are dependent, if rounding stops the gap above
/// 1e-9 objective, or after 2 min(R, B)^3 multiply-adds of factorisations (about half of what an
/// interior point takes). Time O(R B) a round and O(F^2 R + F^3) for F free weights, memory
/// O(F (R + F) + B).
std::optional<BoundedFit> active_set_fit(const MatrixD& e, std::span<const double> y, double low,
                                         double high, double regular);

}  // namespace kvbench
