// Vectors stored as a norm and codes of their randomly rotated direction.
// [1] Zandieh et al., "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
//     2025, arXiv:2504.19874, Algorithms 1 and 2.
// [2] Zandieh et al., "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero
//     Overhead", 2024, arXiv:2406.03482, Definition 3.1.
//
// x = mean + |y| u. u is rotated, coded per coordinate by the nearest level of unit_codebook(bits,
// d), and rotated back; |y| is float16. `signs` spends one bit on the residual r instead: it is
// stored as the signs of S r, S Gaussian [d, d], and |r| in float16, and |r| sqrt(pi / 2) / d S'
// sign(S r) is added, which makes inner products unbiased.
#pragma once

#include "algorithms/reads.hpp"
#include "algorithms/shared/rotation.hpp"
#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

struct RotatedFormat {
  int bits = 4;  ///< 1 to 8
  RotationKind rotation = RotationKind::hadamard;
  bool centred = false;   ///< subtract the rows' mean, stored as `dtype`
  bool unit_norm = true;  ///< rescale the coded direction to unit length
  bool signs = false;     ///< use the last bit for the sign of the residual
};

/// Bytes of `rows` rows of `width`: packed codes, rounded up; norms and mean.
CodeBytes rotated_bytes(const RotatedFormat& format, Index rows, Index width, Index element_bytes);

/// Codes and decodes rows x [c, d]. `dtype`: type of the mean. Norms are clamped to float16's
/// range. Time O(c d (log d + bits)), or O(c d^2) with signs or an orthogonal rotation.
Matrix rotated_codes(Matrix x, const RotatedFormat& format, DType dtype, const RngStream& rotation,
                     const RngStream& sketch);

}  // namespace kvbench
