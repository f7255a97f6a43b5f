// For tokens that leave a cache, the kept tokens whose keys are most similar by cosine: where
// merging methods put them. Knows no method.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// For each token of `from` the place in `to` of the key with the largest cosine to its own: the
/// largest <k_from, k_to> / |k_to|, which |k_from| does not change. Ties go to the lowest place; a
/// zero key has cosine 0 to everything. `to` is not empty. Decided in float64, one FMA per channel,
/// ascending, among those that float32 does not rule out (attention/float32_bounds.hpp).
/// Time O(from to d), memory O(256 to) beside a copy of the keys of `to`.
std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                std::span<const Index> from);

/// Bytes that this holds, what it gives included.
Index nearest_keys_bytes(Index d, Index to, Index from);

/// 1 / |k| of the keys of `tokens`; 0 of a zero key.
std::vector<double> inverse_norms(MatrixView keys, std::span<const Index> tokens);

}  // namespace kvbench
