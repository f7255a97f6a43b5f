// Quantisation by its definition: no packing, one number at a time, float16 by arithmetic.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// `x` at the precision of IEEE half, ties to even, clamped to its finite range.
Real half(Real x);

/// A group read back from `bits`-bit codes.
Vec quantized(const Vec& group, int bits);

/// Each row of `rows` quantised in groups of `group` numbers along the row.
Rows quantized_rows(const Rows& rows, int bits, std::size_t group);

Rows transposed(const Rows& rows);

}  // namespace reference
