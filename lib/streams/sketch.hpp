// Count sketch of tokens' rows: hashing, rounding of cells, and the median over the rows of the
// sketch. Each token is added to one cell per row. CPU and GPU compute the same bits.
// [1] Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", ICALP
//     2002.
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

/// A row's estimate of a token: its cell's sum, or the sum divided by the tokens in the cell.
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

/// A sum as a cell stores it: rounded, and clamped to the finite elements.
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

/// A sketch of vectors of `width` elements. The owner keeps the memory alive.
struct SketchCells {
  const SketchHash* hashes = nullptr;     ///< [rows]
  const float* cells = nullptr;           ///< [rows * per_row, width]
  const std::uint32_t* counts = nullptr;  ///< [rows * per_row] tokens in each
  Index rows = 1, per_row = 1, width = 0;
  DType dtype = DType::float32;
  CellEstimate kind = CellEstimate::sum;
  bool with_sign = false;

  KVB_HD Index place(Index row, Index token) const {
    return row * per_row + sketch_cell(hashes[row], token, per_row);
  }

  /// out = the estimate of the token's channels [first, first + count).
  KVB_HD void estimate(Index token, Index first, Index count, float* out) const {
    Source from[kMaxSketchRows];
    for (Index r = 0; r < rows; ++r) {
      const Index at = place(r, token);
      from[r] = {cells + at * width + first, with_sign ? sketch_sign(hashes[r], token) : 1.0F,
                 kind == CellEstimate::mean ? static_cast<float>(counts[at]) : 1.0F};
    }
    if (rows != 3) {
      medians(from, count, out);
    } else if (kind == CellEstimate::mean) {
      medians_of_three<true>(from[0], from[1], from[2], count, out);
    } else {
      medians_of_three<false>(from[0], from[1], from[2], count, out);
    }
    if (kind == CellEstimate::mean || rows % 2 == 0) {  // otherwise already rounded
      round_row(out, count);
    }
  }

 private:
  // A row's cell. Its estimate is sign * cell / held.
  struct Source {
    const float* cell;
    float sign, held;
  };

  template <bool Divide>
  KVB_HD static void medians_of_three(const Source a, const Source b, const Source c, Index count,
                                      float* out) {
#pragma omp simd
    for (Index t = 0; t < count; ++t) {
      float x = a.sign * a.cell[t];
      float y = b.sign * b.cell[t];
      float z = c.sign * c.cell[t];
      if constexpr (Divide) {
        x /= a.held;
        y /= b.held;
        z /= c.held;
      }
      out[t] = median_of_three(x, y, z);
    }
  }

  // For any number of rows: odd-even transposition sort over the rows, kSide channels at a time.
  KVB_HD void medians(const Source* from, Index count, float* out) const {
    constexpr Index kSide = 16;
    float x[kMaxSketchRows][kSide] = {};
    for (Index first = 0; first < count; first += kSide) {
      const Index side = count - first < kSide ? count - first : kSide;
      for (Index r = 0; r < rows; ++r) {
        for (Index l = 0; l < side; ++l) {
          x[r][l] = from[r].sign * from[r].cell[first + l] / from[r].held;
        }
      }
      for (Index round = 0; round < rows; ++round) {
        for (Index r = round % 2; r + 1 < rows; r += 2) {
          float* low = x[r];
          float* high = x[r + 1];
#pragma omp simd
          for (Index l = 0; l < kSide; ++l) {
            const float a = low[l];
            const float b = high[l];
            low[l] = a < b ? a : b;
            high[l] = a < b ? b : a;
          }
        }
      }
      for (Index l = 0; l < side; ++l) {
        const float upper = x[rows / 2][l];
        // Halved first, since two elements near the largest finite one add up to infinity.
        out[first + l] = rows % 2 == 1 ? upper : 0.5F * x[rows / 2 - 1][l] + 0.5F * upper;
      }
    }
  }

  KVB_HD void round_row(float* x, Index count) const {
#if defined(__CUDA_ARCH__)
    for (Index t = 0; t < count; ++t) {
      x[t] = round_to(dtype, x[t]);
    }
#else
    round_to(dtype, x, count);
#endif
  }
};

}  // namespace kvbench
