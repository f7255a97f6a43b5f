// How far a layer's contribution to the residual stream moved: the outputs of all its heads,
// through the output projection.
#pragma once

#include <optional>
#include <span>

#include "core/types.hpp"

namespace kvbench {

/// |sum_g X_g W_g'|_F^2 in float64. For each KV head g of a layer: `x[g]` [m, group * dv], the
/// outputs (or their differences) of its query heads side by side; `w[g]` [hidden, group * dv], the
/// columns of the output projection that multiply them. NaN in either shows in the result.
/// Time m * hidden * sum_g group * dv; memory: projected_square_bytes.
double projected_square(std::span<const Matrix> x, std::span<const Matrix> w);

/// Bytes that projected_square needs at most beside its arguments, for `columns` = sum_g group *
/// dv.
Index projected_square_bytes(Index columns);

/// Errors of one layer over its m evaluated queries.
struct LayerError {
  double out_rel = 0.0;                ///< |D|_F / |A|_F
  std::optional<double> residual_rel;  ///< sqrt(sum_j |D_j|^2 / sum_j r_j^2)
};

/// `moved`: |D|_F^2; `exact`: |A|_F^2; `residual`: sum_j r_j^2 where the norms r_j of the residual
/// stream are known. 0 / 0 is 0 and x / 0 infinite; NaN stays NaN.
LayerError layer_error(double moved, double exact, std::optional<double> residual);

}  // namespace kvbench
