// Error of a layer's contribution to the residual stream: the outputs of all heads through the
// output projection.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Squared Frobenius norms of products X_g W_g'.
struct ProjectedSquares {
  double whole = 0.0;            ///< |sum_g X_g W_g'|^2
  std::vector<double> of_heads;  ///< [kv_heads]: |X_g W_g'|^2
};

/// In float64, in one order of summation, over the KV heads g of a layer: `x[g]` [m, group * dv]
/// are outputs (or their differences) of its query heads side by side, `w[g]` [hidden, group * dv]
/// their columns of the output projection. NaN propagates. Time m * hidden * sum_g group * dv;
/// memory projected_squares_bytes.
ProjectedSquares projected_squares(std::span<const Matrix> x, std::span<const Matrix> w);

/// Peak bytes of projected_squares for `columns` = sum_g group * dv.
Index projected_squares_bytes(Index columns);

/// Errors of one layer over its m evaluated queries.
struct LayerError {
  double out_rel = 0.0;                ///< |D|_F / |A|_F
  std::optional<double> residual_rel;  ///< sqrt(sum_j |D_j|^2 / sum_j r_j^2)
};

/// `moved`: |D|_F^2; `exact`: |A|_F^2; `residual`: sum_j r_j^2 of the residual stream's norms, if
/// known. 0 / 0 is 0, x / 0 infinite, NaN stays NaN.
LayerError layer_error(double moved, double exact, std::optional<double> residual);

}  // namespace kvbench
