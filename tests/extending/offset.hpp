// How much of a head's rows is one common vector: what centring keys takes away.
#pragma once

#include "attention/row_set.hpp"

namespace kvbench {

struct CommonOffset {
  double norm = 0.0;   ///< |mean row|
  double share = 0.0;  ///< |mean row|^2 over the rows' mean squared norm, in [0, 1]; 0 of zero rows
};

/// Of all rows, at least one. Time O(n d^2), memory O(d^2): those of RowSet::moments.
CommonOffset common_offset(const RowSet& rows);

}  // namespace kvbench
