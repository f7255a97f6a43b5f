// Attention matching: which tokens are kept, and what weights and values they get so that reference
// queries see the mass and the output of all of them. attention-matching and oracle-matching differ
// in the reference queries alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// What both have in common. Parameters: the sizes, keys, weights, values, w_min, w_max, ridge,
/// heads, and `own`. The check refuses w_min above w_max, and a native size where heads share a
/// budget; scope, survey and shares are those of the method that `heads` names.
Method matching_method(std::string name, Compressed (*compress)(const Task&, const Params&),
                       const std::vector<ParamSpec>& own = {});

/// The largest number of bytes that match_attention needs for R reference queries, m tokens and B
/// kept ones.
Index matching_scratch(const Params& params, const LayerFacts& layer, Index rows, Index middle,
                       Index kept);

/// Fits to the queries that `reference` gives (reference_rows), which is not called where no token
/// fits. With values=fitted all entries are made; else
/// tokens are held with weights. Diagnostics: mass_error and output_error (of the reference
/// queries, relative, in the Frobenius norm), weight_mean, at_min, at_max, fit_gap.
/// R reference queries of the group, m tokens, B kept: time O(R m (d + dv) + R B min(R, B) + some
/// twenty of min(R, B)^3), memory O(R B + min(R, B)^2 + m (d + dv)); keys=omp O(R m) more.
Compressed match_attention(const Task& task, const Params& params,
                           const std::function<MatrixD()>& reference);

}  // namespace kvbench
