// Cholesky factors of symmetric positive definite float64 matrices, in a fixed order of summation:
// every entry is one chain of FMAs over t, then one division or square root. The bits depend
// neither on the blocking, nor on the instruction set, nor on the number of right sides.
#pragma once

#include <span>

#include "core/types.hpp"

namespace kvbench {

/// Replaces the upper triangle of `a` [n, n] by that of U, a = U'U:
///   u[i, j] = (a[i, j] - sum_{t < i} u[t, i] u[t, j]) / u[i, i], t ascending; u[i, i] its root.
/// Entries below the diagonal are ignored and unspecified afterwards. Returns false, with `a`
/// unspecified, if a pivot is not positive and finite: `a` is not positive definite in float64.
/// Time O(n^3): n^3 / 6 multiply-adds.
[[nodiscard]] bool factor_cholesky(MatrixD& a);

/// x [n, k] = U'^-1 x, t ascending as above. `u`: from factor_cholesky.
void solve_lower(const MatrixD& u, MatrixD& x);
/// x [n, k] = (U'U)^-1 x: solve_lower, then U^-1 with t descending from n - 1.
void solve_cholesky(const MatrixD& u, MatrixD& x);
/// The same for one right side x [n].
void solve_cholesky(const MatrixD& u, std::span<double> x);

}  // namespace kvbench
