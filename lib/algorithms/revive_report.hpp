// How far KVReviver's estimates are from the tokens that they stand for, beside the bounds of
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction".
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/count_sketch.hpp"

namespace kvbench {

/// Means over tokens and elements. Keys and values apart.
struct ReviveErrors {
  double k_error = 0.0;   ///< squared error of the estimates
  double k_square = 0.0;  ///< square of the exact elements
  double v_error = 0.0;
  double v_square = 0.0;
};

/// Of `tokens`, where row first + step * i of `k` and `v` is the estimate of tokens[i]; step is 1,
/// or 0 where one row stands for all. No tokens: zeros.
ReviveErrors revive_errors(const KvHead& head, std::span<const Index> tokens, const Matrix& k,
                           const Matrix& v, Index first, Index step = 1);

/// The entries cells, k_error, k_bound, v_error, v_bound of `diag` for `vague` tokens in a sketch.
std::vector<std::pair<std::string, std::string>> sketch_figures(const ReviveErrors& errors,
                                                                Index vague,
                                                                const SketchShape& sketch);

/// A figure as `diag` writes it.
std::string revive_number(double x);

}  // namespace kvbench
