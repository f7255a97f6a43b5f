// Statistical leverage: of keys, and of values in capkv.
// [1] Chari, Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate
//     Leverage Scores", 2025, arXiv:2507.08143.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: LeverageScorePress.
#pragma once

#include "algorithms/contract.hpp"
#include "attention/inner_products.hpp"

namespace kvbench {

/// The parameter `sketch`: width of the Gaussian sketch; 0: none.
ParamSpec sketch_param();

bool draws_sketch(const Params& params);

/// For MethodInfo::matrix_bytes: the sketch of all keys and its Gram matrix.
Index leverage_bytes(const Params& params, const LayerFacts& layer, Index kept);

/// For MethodInfo::resolve: throws InputError unless the layer's rotary tables cover its positions.
/// Resolves nothing.
std::map<std::string, std::string> require_rope_tables(const Params& params,
                                                       const LayerFacts& layer);

/// U of gram + ridge I = U'U; entries of `gram` below the diagonal are ignored. The ridge grows
/// tenfold until the matrix is positive definite in float64.
MatrixD ridge_factor(const MatrixD& gram, double ridge);
/// x' (U'U)^-1 x of each row x. In blocks.
std::vector<double> inverse_forms(const MatrixD& upper, const MatrixD& rows);

/// Ridge leverage of each row x of X, the rows of `keys` [m, d] minus their mean:
///   x' (X'X + 1e-2 I)^-1 x, in [0, 1] up to rounding.
/// With sketch > 0, P'x replaces x: P [d, sketch] has entries N(0, 1/sketch), entry (t, c) from
/// draw t * sketch + c of `normals`. The ridge grows for key norms beyond 1e6, say (ridge_factor).
/// Finite for finite keys. float64. With w = sketch or d: time O(m d w + m w^2 + w^3), memory
/// O(m (d + w)).
std::vector<double> leverage_scores(MatrixD keys, Index sketch, const RngStream& normals);

/// Leverage of the un-rotated keys at `tokens`, with the task's stream `sketch`.
std::vector<double> leverage_scores(const Task& task, std::span<const Index> tokens,
                                    const Params& params);

}  // namespace kvbench
