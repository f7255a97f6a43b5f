// The quantizer with the least mean squared error for a coordinate of a uniform unit vector.
// [1] Max, "Quantizing for minimum distortion", IRE Transactions on Information Theory 6, 1960.
// [2] Zandieh et al., "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
//     2025, arXiv:2504.19874, section 3.1: the density (1 - x^2)^((d - 3) / 2) on [-1, 1].
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Levels and the cuts between them.
struct Codebook {
  std::vector<double> levels;  ///< [2^bits], ascending, symmetric about 0
  std::vector<double> cuts;    ///< [2^bits - 1]: midpoints of neighbours

  /// The nearest level; ties to the lower.
  double nearest(double x) const;
};

/// The codebook for `bits` bits (1 to 8) in `d` >= 1 dimensions: each level is the mean of its cell
/// to 1e-12 standard deviations. Computed once per pair. Thread-safe. Throws std::logic_error for
/// other arguments.
const Codebook& unit_codebook(int bits, Index d);

}  // namespace kvbench
