// Slow reference of capkv: every rotation, weight and matrix written out.
#pragma once

#include "core/types.hpp"
#include "reference/selection.hpp"

namespace reference {

/// Scores of `tokens`. mu: the mean over queries [begin, end), un-rotated by cos, sin [p, pairs],
/// and over positions [prompt, prompt + future) of the query turned to that position (tables null:
/// queries as stored). A by elimination.
Vec capkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin, Index end,
          const kvbench::Matrix* cos, const kvbench::Matrix* sin, bool half, Index future, Real tau,
          ReferenceReduce reduce = ReferenceReduce::mean);

}  // namespace reference
