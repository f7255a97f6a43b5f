// Whether products of a head's queries, keys and values stay within float32.
#pragma once

#include "core/types.hpp"

namespace kvbench {

/// The largest sizes (absolute values) of a head's elements; finite. Nothing stored: 0.
struct ValueRange {
  double key = 0.0;
  double query = 0.0;
  double value = 0.0;
};

ValueRange value_range(const KvHead& head);
/// The larger of each.
ValueRange widest(const ValueRange& a, const ValueRange& b);

/// float32 holds 3e38: products of a query and a key of `d` channels, with the factor `scale`, up
/// to 1e30, and keys and values, which methods multiply with themselves, up to 1e15. What is left
/// is for sums over tokens and what methods make of them. float64 holds what float32 elements give.
bool fits_float32(const ValueRange& range, double scale, Index d);

}  // namespace kvbench
