// Whether products of queries, keys and values stay within float32.
#pragma once

#include "core/types.hpp"

namespace kvbench {

/// The largest absolute values of a head's elements; 0 if empty.
struct ValueRange {
  double key = 0.0;
  double query = 0.0;
  double value = 0.0;
};

ValueRange value_range(const KvHead& head);
ValueRange widest(const ValueRange& a, const ValueRange& b);

/// Whether float32 suffices: query-key products over `d` channels times `scale` up to 1e30, keys
/// and values, which methods square, up to 1e15. The rest of its range (3e38) is for sums over
/// tokens.
bool fits_float32(const ValueRange& range, double scale, Index d);

}  // namespace kvbench
