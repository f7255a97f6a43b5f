// What kvbench cluster reports, by the definitions: quantiles, norms, the growth exponent,
// principal components by Jacobi rotations. Radii and counts: reference/cluster.hpp.
#pragma once

#include <utility>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// Euclidean norm of each row.
Vec norms(const Rows& rows);

/// Quantile p in [0, 1] by linear interpolation between order statistics.
Real quantile(Vec values, Real p);

/// Slope of the least-squares line through (log x, log y), from the normal equations.
Real log_log_slope(const std::vector<std::pair<Index, Index>>& points);

/// Share of the variance of log y that this line explains: 1 - residual / total.
Real log_log_r2(const std::vector<std::pair<Index, Index>>& points);

/// Covariance of the rows' columns, divided by the number of rows.
Rows covariance(const Rows& rows);

/// Eigenvalues of a symmetric matrix, falling, and a unit eigenvector of each.
struct Eigen {
  Vec values;
  Rows vectors;
};
Eigen eigen(Rows matrix);

}  // namespace reference
