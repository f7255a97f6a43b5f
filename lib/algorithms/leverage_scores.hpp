// Statistical leverage of keys: how far a key lies outside what the others span. What `leverage`
// selects by, and half of what `compactor` does.
// [1] Chari, Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate
//     Leverage Scores", 2025, arXiv:2507.08143.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: LeverageScorePress.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/similarity.hpp"

namespace kvbench {

/// The parameter `sketch`: columns of the Gaussian sketch; 0: none.
ParamSpec sketch_param();

/// Whether `sketch` draws anything (info.random).
bool draws_sketch(const Params& params);

/// Throws InputError where `method` cannot un-rotate keys at positions [0, end): the layer's rotary
/// tables hold `positions` of them, 0 where there are none.
void require_rope_tables(std::string_view method, Index positions, Index end);

/// What info.resolve of a method that un-rotates all keys owes: refuses a layer without tables.
void require_rope_tables(std::string_view method, const LayerFacts& layer);

/// Keys at positions `tokens` [m, d] as they were before their rotation, float64. Errors: as above.
MatrixD unrotated_keys(std::string_view method, const Task& task, std::span<const Index> tokens);

/// Ridge leverage of each row of X, which are `keys` [m, d] less their mean:
///   x' (X'X + 1e-2 I)^-1 x, in [0, 1] to rounding.
/// With sketch > 0 every x is P'x instead, P [d, sketch] of entries N(0, 1/sketch), entry (t, c)
/// from draw t * sketch + c of `normals`. Where the matrix is not positive definite in float64
/// (keys of norms beyond 1e6, say) the ridge grows tenfold until it is. Finite for finite keys.
/// float64. With w = sketch or d: time O(m d w + m w^2 + w^3), memory O(m (d + w)).
std::vector<double> leverage_scores(MatrixD keys, Index sketch, const RngStream& normals);

}  // namespace kvbench
