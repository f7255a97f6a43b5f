// ChunkKV's selection from its definition: chunk after chunk, each found by looking at all.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// `count` of `tokens`, ascending: whole chunks of `length` by their mean score, and the best of
/// the chunk at which they run out; ties to the lowest.
std::vector<Index> chunks_kept(const std::vector<Index>& tokens, const Vec& scores, Index length,
                               Index count);

}  // namespace reference
