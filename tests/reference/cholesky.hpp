// Cholesky by the textbook's loops, one entry after another: the order of summation that
// attention/cholesky.hpp promises, to the bit.
#pragma once

#include "core/types.hpp"

namespace reference {

/// U of a = U'U, zero below the diagonal; `positive` false where a pivot is not.
kvbench::MatrixD cholesky(const kvbench::MatrixD& a, bool& positive);

/// Column by column: U'^-1 b, and (U'U)^-1 b.
kvbench::MatrixD solved_lower(const kvbench::MatrixD& u, const kvbench::MatrixD& b);
kvbench::MatrixD solved(const kvbench::MatrixD& u, const kvbench::MatrixD& b);

}  // namespace reference
