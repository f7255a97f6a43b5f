// Statistical leverage of keys: how far a key lies outside what the others span.
// [1] Chari, Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate
//     Leverage Scores", 2025, arXiv:2507.08143.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: LeverageScorePress.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/inner_products.hpp"

namespace kvbench {

/// The parameter `sketch`: columns of the Gaussian sketch; 0: none.
ParamSpec sketch_param();

/// Whether `sketch` draws anything (info.random).
bool draws_sketch(const Params& params);

/// For MethodInfo::resolve of a method that un-rotates all keys: throws InputError where the
/// layer's rotary tables do not hold all its positions. Resolves nothing.
std::map<std::string, std::string> require_rope_tables(const Params& params,
                                                       const LayerFacts& layer);

/// Ridge leverage of each row of X, which are `keys` [m, d] less their mean:
///   x' (X'X + 1e-2 I)^-1 x, in [0, 1] to rounding.
/// With sketch > 0 every x is P'x instead, P [d, sketch] of entries N(0, 1/sketch), entry (t, c)
/// from draw t * sketch + c of `normals`. Where the matrix is not positive definite in float64
/// (keys of norms beyond 1e6, say) the ridge grows tenfold until it is. Finite for finite keys.
/// float64. With w = sketch or d: time O(m d w + m w^2 + w^3), memory O(m (d + w)).
std::vector<double> leverage_scores(MatrixD keys, Index sketch, const RngStream& normals);

/// Of the keys at positions `tokens` as they were before their rotation, by `sketch` columns drawn
/// from the task's stream `sketch`. Errors: as require_rope_tables, for these positions.
std::vector<double> leverage_scores(const Task& task, std::span<const Index> tokens,
                                    const Params& params);

/// Bytes that this holds for `tokens` tokens.
Index leverage_scores_bytes(const Params& params, Index d, Index tokens);

}  // namespace kvbench
