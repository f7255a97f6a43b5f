// Slow reference of expected-attention: the definition with every matrix written out.
#pragma once

#include "core/types.hpp"
#include "reference/selection.hpp"

namespace reference {

/// The d x d rotation to one position.
Rows rotation(const kvbench::Matrix& cos, const kvbench::Matrix& sin, Index position, std::size_t d,
              bool half);

/// Scores of `tokens`: per query head the softmax over them of the log of the mean of exp(s<q,k>)
/// over the Gaussian of the queries at positions [begin, end), un-rotated by cos, sin [p, pairs]
/// and turned by the mean rotation to positions [end, end + future) (tables null: as stored, no
/// rotation); mean over the group, times |v|.
Vec expected_attention(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                       Index end, const kvbench::Matrix* cos, const kvbench::Matrix* sin, bool half,
                       Index future, ReferenceReduce reduce = ReferenceReduce::mean);

}  // namespace reference
