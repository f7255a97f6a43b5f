// Cholesky factors of symmetric positive definite float64 matrices, in a fixed order of summation:
// every entry is one chain of fused multiply-adds over t, then one division or square root. Neither
// the blocking, nor the instruction set, nor how many right sides are solved for changes a bit.
#pragma once

#include <span>

#include "core/types.hpp"

namespace kvbench {

/// Replaces the upper triangle of `a` [n, n] by that of U, a = U'U:
///   u[i, j] = (a[i, j] - sum_{t < i} u[t, i] u[t, j]) / u[i, i], t ascending; u[i, i] its root.
/// Below the diagonal anything may stand, before and after. False where a pivot is not positive and
/// finite: `a` is then not positive definite in float64, and what it holds is of no use. Time
/// O(n^3): n^3 / 6 multiply-adds.
[[nodiscard]] bool factor_cholesky(MatrixD& a);

/// x [n, k] = U'^-1 x: t ascending as above. `u` as factor_cholesky leaves it.
void solve_lower(const MatrixD& u, MatrixD& x);
/// x [n, k] = (U'U)^-1 x: solve_lower, and U^-1 of that with t descending from n - 1.
void solve_cholesky(const MatrixD& u, MatrixD& x);
/// The same for one right side x [n].
void solve_cholesky(const MatrixD& u, std::span<double> x);

}  // namespace kvbench
