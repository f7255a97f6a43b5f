// Slow references of leverage, compactor, curdkv and criticalkv, from their definitions.
#pragma once

#include "core/types.hpp"
#include "reference/selection.hpp"

namespace reference {

/// Keys of `tokens` before their rotation by cos, sin [p, pairs]; `half`: channels t and t + pairs
/// turn together, else 2 t and 2 t + 1.
Rows unrotated(const kvbench::KvHead& head, const std::vector<Index>& tokens,
               const kvbench::Matrix& cos, const kvbench::Matrix& sin, bool half);

/// x' (X'X + ridge)^-1 x of each row of X: `keys` less their mean, times phi [d][columns] where
/// that is not empty. By elimination.
Vec leverage(const Rows& keys, const Rows& phi, Real ridge);

/// compactor's attention of `tokens`: chunks filled up with zero keys and queries, every logit
/// written out, no shift; queries at positions outside [begin, end) are no queries.
Vec chunk_attention(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                    Index end, Index chunk, ReferenceReduce reduce);

/// z-scores over all rows together, n - 1; a deviation below 1e-6 counts as 1e-6.
Rows z_scores(const Rows& rows);

/// curdkv's scores of `tokens`, those of the first ones above all others.
Vec curdkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index window,
           Index first);

/// |W_h v|_1 of `tokens`, mean over the group: w [hidden, group dv].
Vec output_norms(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                 const kvbench::Matrix& w);

}  // namespace reference
