// Attention matching: keeps tokens with weights and values such that reference queries see the mass
// and the output of all tokens. attention-matching and oracle-matching differ only in the reference
// queries.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The common part of both methods. Parameters: the sizes, keys, weights, values, w_min, w_max,
/// ridge, heads, and `own`. Scope, survey and shares are those of the method named by `heads`.
Method matching_method(std::string name, Compressed (*compress)(const Task&, const Params&),
                       const std::vector<ParamSpec>& own = {});

/// Throws InputError if w_min > w_max, for a native size if heads share a budget, and if the method
/// named by `keys` shares a budget or that named by `heads` shares none, with their parameters.
JobFacts matching_facts(const Params& params);

/// MethodInfo::matrix_bytes for so many reference queries.
Index matching_bytes(const Params& params, const LayerFacts& layer, Index queries, Index kept);

/// Fits to the rows returned by `reference` (reference_rows), not called if no token fits. With
/// values=fitted all entries are made; otherwise tokens are held with weights. Diagnostics:
/// mass_error and output_error (on the reference queries, relative, Frobenius norm), weight_mean,
/// at_min, at_max, fit_gap. R reference queries of the group, m tokens, B kept: time O(R m (d + dv)
/// + R B min(R, B)) plus about twenty min(R, B)^3, memory O(R B + min(R, B)^2 + m (d + dv));
/// keys=omp adds O(R m).
/// `book_key` as for ReferenceAttention.
Compressed match_attention(const Task& task, const Params& params,
                           const std::function<MatrixD()>& reference,
                           const std::string& book_key = {});

/// The key of attention-matching's parameters ref, ref_queries and keys.
std::string matching_book_key(const Params& params);

}  // namespace kvbench
