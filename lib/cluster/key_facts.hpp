// Properties of keys that affect quantization: largest logit, common mean, outlier channels.
// [1] Liu et al., "KIVI", ICML 2024, arXiv:2402.02750, section 3.1: channels of keys that are
//     larger than the others.
// [2] Hooper et al., "KVQuant", NeurIPS 2024, arXiv:2401.18079, section 3.2: keys before their
//     rotation.
#pragma once

#include "core/rope.hpp"
#include "core/types.hpp"

namespace kvbench {

struct KeyFacts {
  double rho = 0.0;             ///< s max |q| max |k|, a bound on logits
  double mean_share = 0.0;      ///< |mean k|^2 over the mean of |k|^2; 0 for zero keys
  double mean_share_pre = 0.0;  ///< the same for un-rotated keys; NaN without rotary tables
  /// Channels with a root mean square above kOutlierFactor times the median channel's.
  Index outlier_channels = 0;
};

inline constexpr double kOutlierFactor = 4.0;

/// Properties of keys [n, d], n >= 1, at positions 0, 1, .... `rope` may be null or too short:
/// none. `largest_query`: largest norm of the group's queries. Time O(n d), memory O(d).
KeyFacts key_facts(MatrixView keys, const RopeTables* rope, double largest_query, double scale);

}  // namespace kvbench
