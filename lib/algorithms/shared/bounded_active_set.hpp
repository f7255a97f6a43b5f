// Bounded least squares by an active set: fast where few weights of the optimum are free.
#pragma once

#include <optional>
#include <span>

#include "algorithms/shared/bounded_least_squares.hpp"

namespace kvbench {

/// argmin |E w - y|^2 + regular |w - 1|^2 over low <= w_j <= high, as bounded_least_squares has it;
/// low < high. Weights at a bound are fixed; the others, free, solve their normal equations, and
/// stop where they meet a bound. Each round frees those whose gradients ask for it most, up to half
/// as many as are free. The objective falls from round to round.
/// Nothing where that is not the way: free columns that depend on each other, rounding in place of
/// a gap of 1e-9 objective, or more than 2 min(R, B)^3 multiply-adds of factors, about half of what
/// an interior point takes. Time O(R B) a round and O(F^2 R + F^3) for F free weights, memory
/// O(F (R + F) + B).
std::optional<BoundedFit> active_set_fit(const MatrixD& e, std::span<const double> y, double low,
                                         double high, double regular);

}  // namespace kvbench
