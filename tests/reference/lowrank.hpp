// Low-rank factors by their definition: eigenvectors of the Gram matrix in long double, whose 64
// bits leave 32 after squaring.
#pragma once

#include "reference/reference.hpp"

namespace reference {

/// L, lower triangular, of L L' = sum q q' + 1e-6 trace / d I over the rows of `queries` [., d].
Rows query_factor(const Rows& queries);

/// U [m, rank] and C [rank, d] of the truncated singular value decomposition of (x - mean) L, C
/// times L^-1. `weight`: L, or empty for none. Not rounded.
struct LowRank {
  Rows u, c;
};
LowRank low_rank(const Rows& x, const Vec& mean, const Rows& weight, std::size_t rank);

/// Mean of the rows.
Vec row_mean(const Rows& x);

}  // namespace reference
