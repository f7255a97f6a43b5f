// Attention matching: which tokens are kept, and what weights and values they get so that reference
// queries see the mass and the output of all of them. attention-matching and oracle-matching differ
// in the reference queries alone.
#pragma once

#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// keys, weights, values, w_min, w_max, ridge, heads; and the sizes.
std::vector<ParamSpec> matching_params();

/// Throws InputError where they do not go together: w_min above w_max, or a native size where heads
/// share a budget.
void check_matching(std::string_view method, const Params& params);

/// Scope of the method that `heads` names; Scope::head for heads=equal.
Scope matching_scope(const Params& params);

/// Survey and shares of the method that `heads` names.
Survey matching_survey(const Task& task, const Params& params);
std::vector<Share> matching_share(std::span<const Survey> surveys, const Params& params);

/// Most bytes that match_attention needs for R reference queries, m tokens and B kept ones.
Index matching_scratch(const Params& params, const LayerFacts& layer, Index rows, Index middle,
                       Index kept);

/// Fits to the queries at positions `reference`. With values=fitted all entries are made; else
/// tokens are held with weights. Diagnostics: mass_error and output_error (of the reference
/// queries, relative, in the Frobenius norm), weight_mean, at_min, at_max, fit_gap.
/// R reference queries of the group, m tokens, B kept: time O(R m (d + dv) + R B min(R, B) + some
/// twenty of min(R, B)^3), memory O(R B + min(R, B)^2 + m (d + dv)); keys=omp O(R m) more.
Compressed match_attention(const Task& task, const Params& params, Range reference);

}  // namespace kvbench
