// What of a head's keys makes them hard to store in few bits: their largest logit, their common
// part, their outlier channels. [1] Liu et al., "KIVI", ICML 2024, arXiv:2402.02750, section 3.1:
// channels of keys that are larger
//     than the others.
// [2] Hooper et al., "KVQuant", NeurIPS 2024, arXiv:2401.18079, section 3.2: keys before their
//     rotation.
#pragma once

#include "core/rope.hpp"
#include "core/types.hpp"

namespace kvbench {

struct KeyFacts {
  double rho = 0.0;             ///< s max |q| max |k|: no logit is larger
  double mean_share = 0.0;      ///< |mean k|^2 over the mean of |k|^2; 0 of zero keys
  double mean_share_pre = 0.0;  ///< the same of un-rotated keys; NaN without rotary tables
  /// Channels whose root mean square is more than kOutlierFactor times the median channel's.
  Index outlier_channels = 0;
};

inline constexpr double kOutlierFactor = 4.0;

/// Of keys [n, d], n >= 1, at positions 0, 1, ...; `rope` null: none, or shorter than the keys.
/// `largest_query`: the largest norm of the group's queries. Time O(n d), memory O(d).
KeyFacts key_facts(MatrixView keys, const RopeTables* rope, double largest_query, double scale);

}  // namespace kvbench
