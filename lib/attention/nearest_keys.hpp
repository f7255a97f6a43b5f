// For tokens that leave a cache, the kept tokens with the most similar keys by cosine.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// out[i] = the index in `to`, not empty, of the key with the largest cosine to the key of from[i]:
/// the largest <k_from, k_to> / |k_to|. Ties go to the lowest index; a zero key has cosine 0 to all
/// keys. Computed in float64, one FMA per channel, ascending, for keys that float32 does not rule
/// out (attention/float32_bounds.hpp). Time O(from to d), memory O(256 to) beside a copy of the
/// keys of `to`.
std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                std::span<const Index> from);

/// [tokens]: 1 / |k| of the keys; 0 of a zero key.
std::vector<double> inverse_norms(MatrixView keys, std::span<const Index> tokens);

}  // namespace kvbench
