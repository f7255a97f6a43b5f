// How many dimensions the rows of a head fill.
#pragma once

#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

inline constexpr double kSpectrumShare = 0.9;

/// Of the principal variances v of the rows. All 0 if the rows are equal.
struct Spectrum {
  double participation = 0.0;  ///< (sum v)^2 / sum v^2, in [1, width]
  double largest_share = 0.0;  ///< the largest over their sum
  Index dims_90 = 0;           ///< fewest that have kSpectrumShare of their sum
};

/// At least one row. Time O(n d^2 + d^3), memory O(d^2).
Spectrum spectrum(const RowSet& rows, Index width);

}  // namespace kvbench
