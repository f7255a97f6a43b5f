// What a count sketch does with one position and one channel: hashing, the cells' rounding, the
// median over the rows. CPU and device share it, so that both estimate the same to the bit.
// [1] Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
// [2] Dietzfelbinger, "Universal hashing and k-wise independent random variables via integer
//     arithmetic without primes", STACS 1996.
//
// Hash family. A row has four 64-bit words a, b, a', b'. For a position x in [0, 2^32):
//   u(x)    = floor(((a x + b) mod 2^64) / 2^32)      pairwise independent on [0, 2^32)   [2]
//   cell(x) = floor(u(x) * cells / 2^32)              P(cell(x) = cell(y)) <= 1/cells + 2^-32
//   sign(x) = -1 where (a' x + b') mod 2^64 >= 2^63, else +1; exactly pairwise independent
#pragma once

#include <cstdint>

#include "core/float16.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// What a row says of a token: its cell's sum, or the sum divided by the tokens in the cell.
enum class CellEstimate { sum, mean };

inline constexpr Index kMaxSketchRows = 15;

/// The words of a row.
struct SketchHash {
  std::uint64_t cell_a, cell_b, sign_a, sign_b;
};

/// 0 <= position < 2^32.
KVB_HD inline Index sketch_cell(const SketchHash& h, Index position, Index cells) {
  const std::uint64_t u = (h.cell_a * static_cast<std::uint64_t>(position) + h.cell_b) >> 32U;
  return static_cast<Index>(u * static_cast<std::uint64_t>(cells) >> 32U);
}

/// +1 or -1.
KVB_HD inline float sketch_sign(const SketchHash& h, Index position) {
  const std::uint64_t u = h.sign_a * static_cast<std::uint64_t>(position) + h.sign_b;
  return (u >> 63U) != 0 ? -1.0F : 1.0F;
}

KVB_HD inline float largest_element(DType type) {
  return type == DType::float16    ? 65504.0F
         : type == DType::bfloat16 ? 0x1.FEp127F
                                   : 0x1.FFFFFEp127F;
}

/// A sum as a cell holds it: rounded, and cut to the largest finite element.
KVB_HD inline float cell_element(DType type, float sum) {
  const float largest = largest_element(type);
  const float x = round_to(type, sum);
  return x > largest ? largest : x < -largest ? -largest : x;
}

KVB_HD inline float median_of_three(float x, float y, float z) {
  const float low = x < y ? x : y;
  const float high = x < y ? y : x;
  const float upper = high < z ? high : z;
  return low < upper ? upper : low;
}

/// Of x[rows], which is sorted. The caller rounds the mean of two.
KVB_HD inline float sort_to_median(float* x, Index rows) {
  for (Index round = 0; round < rows; ++round) {
    for (Index r = round % 2; r + 1 < rows; r += 2) {
      const float a = x[r];
      const float b = x[r + 1];
      x[r] = a < b ? a : b;
      x[r + 1] = a < b ? b : a;
    }
  }
  const float upper = x[rows / 2];
  // Halves first: two elements near the largest finite one would add up to infinity.
  return rows % 2 == 1 ? upper : 0.5F * x[rows / 2 - 1] + 0.5F * upper;
}

}  // namespace kvbench
