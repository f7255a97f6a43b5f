// Slow references of triattention, defensivekv and dropkv, from their definitions.
#pragma once

#include "core/types.hpp"
#include "reference/selection.hpp"

namespace reference {

/// triattention's scores of `tokens`: un-rotated by cos, sin [p, pairs], frequencies w [pairs] and
/// amplitude r; the queries at positions [begin, end); offsets counted from `start`; every cosine
/// written out.
Vec triattention(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                 Index end, const kvbench::Matrix& cos, const kvbench::Matrix& sin, bool half,
                 const Vec& w, Real r, Index start, Index max_offset, bool largest,
                 ReferenceReduce reduce);

/// defensivekv's s and mean attention of `tokens`, from the queries at positions [begin, end).
struct Defended {
  Vec s, mean;
};
Defended defended(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                  Index end, Index kernel);

/// How many tokens come first: those before the one at which the cumulative share of `mean`,
/// largest first, reaches `first_mass`.
Index first_count(const Vec& mean, Real first_mass);

/// dropkv's scores of `tokens`: each query's output computed anew without each token, where the
/// weight 1 - p of the others is 1 - p + epsilon; pooled over `kernel` positions.
Vec dropkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin, Index end,
           Real epsilon, Index kernel, ReferenceReduce reduce);

}  // namespace reference
