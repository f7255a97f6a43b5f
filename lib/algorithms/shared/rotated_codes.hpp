// Vectors as a norm and codes of their randomly rotated direction.
// [1] Zandieh et al., "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
//     2025, arXiv:2504.19874, Algorithms 1 and 2.
// [2] Zandieh et al., "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero
//     Overhead", 2024, arXiv:2406.03482, Definition 3.1.
//
// x = mean + |y| u. The direction u is rotated, each coordinate coded by the nearest level of
// unit_codebook(bits, d), and rotated back; |y| is float16. With `signs` the codes have one bit
// less, and what they leave, r, is stored as the signs of S r, S Gaussian [d, d], and |r| in
// float16: |r| sqrt(pi / 2) / d S' sign(S r) is added, which makes inner products unbiased.
#pragma once

#include "algorithms/shared/rotation.hpp"
#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

struct RotatedFormat {
  int bits = 4;  ///< 1 to 8
  RotationKind rotation = RotationKind::hadamard;
  bool centred = false;   ///< the rows' mean, at `dtype`, is taken off before
  bool unit_norm = true;  ///< the coded direction is rescaled to unit length
  bool signs = false;     ///< the last bit is that of the sign residual
};

/// Bytes of the codes of `rows` rows of `width`: packed, whole bytes.
Index rotated_code_bytes(const RotatedFormat& format, Index rows, Index width);
/// Bytes of norms and mean.
Index rotated_scale_bytes(const RotatedFormat& format, Index rows, Index width,
                          Index element_bytes);

/// Rows x [c, d] read back from their codes. `dtype`: type of the mean. Norms beyond float16's
/// range are taken at its edge. Time O(c d (log d + bits)), with signs or an orthogonal rotation
/// O(c d^2).
Matrix rotated_codes(Matrix x, const RotatedFormat& format, DType dtype, const RngStream& rotation,
                     const RngStream& sketch);

}  // namespace kvbench
