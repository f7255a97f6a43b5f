// Products of 16 x 16 tiles by the warps of a block kernel: tensor cores on a GPU, the same sums by
// one lane on a HostMachine. Knows no method.
//
// Numbers. With operands as in core/split_half.hpp,
//   a b = (hi hi + (hi lo + lo hi) 2^-11) / (Sa Sb)
// to 3 2^-22: that of each operand, and lo lo, which is left out [1]. Operands without lo save
// products: float16 takes one, float32 against float16 two, float32 three.
//
// Sums. Products of halves are exact in float32. The 16 products of a step are summed inside the
// tensor core: in an order of its own and rounded towards zero, some 2^-23 of the largest partial
// sum. Steps are added outside it, rounded to nearest, in ascending order [1]: summing them inside
// would shrink every sum a little. A HostMachine sums the 16 products in ascending order, rounded
// to nearest. Everything but those 16 is the same to the bit on both.
//
// Functions of tiles are a warp's (core/warp.hpp): all lanes call them with the same arguments.
// Operands lie in shared or global memory, on boundaries of 32 bytes. Sums lie in registers, which
// a phase ends; loading operands from where they are packed, and not from a stage in shared memory
// per depth, spares the sums a way through it.
//
// Cost of a step of R x C tiles, per product: 2 R C 16^3 flops and 512 (R + C) bytes of loads.
// [1] Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the
//     FP32 theoretical peak performance", IJHPCA 36(4), 2022.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/math.hpp"
#include "core/split_half.hpp"
#include "core/types.hpp"
#include "core/warp.hpp"

#if defined(KVB_CUDA_HEADERS)
#include <cuda_fp16.h>
#include <mma.h>
#endif

namespace kvbench {

inline constexpr int kTileSide = 16;
inline constexpr int kTileSize = kTileSide * kTileSide;

/// Tiles of an operand, one beside the other: row r, column c of tile i at i next + r stride + c.
struct SplitTiles {
  const std::uint16_t* hi;
  const std::uint16_t* lo;  ///< null: 0
  int next;                 ///< a multiple of 16
  int stride;               ///< a multiple of 8
};

/// Rows of halves, packed: tile (i, t) has rows 16 i .. and channels 16 t .., 256 halves in one
/// piece. Zeros beyond the last row and channel.
struct SplitRows {
  const std::uint16_t* hi;
  const std::uint16_t* lo;  ///< null: 0
  Index depth_tiles;        ///< tiles of channels

  /// Tile (row, depth) and those of the next 16, 32, ... rows.
  KVB_HD SplitTiles down(Index row, Index depth) const {
    return from((row * depth_tiles + depth) * kTileSize, static_cast<int>(depth_tiles) * kTileSize);
  }
  /// Tile (row, depth) and those of the next channels.
  KVB_HD SplitTiles across(Index row, Index depth) const {
    return from((row * depth_tiles + depth) * kTileSize, kTileSize);
  }

 private:
  KVB_HD SplitTiles from(Index at, int next) const {
    return {hi + at, lo == nullptr ? nullptr : lo + at, next, kTileSide};
  }
};

/// What the columns of a product are: rows of the right operand's tiles (its channels are summed
/// over), or their columns (its rows are).
enum class RightSide { rows, columns };

#if defined(KVB_DEVICE_CODE)

template <RightSide side>
struct RightLayout {
  using Type = nvcuda::wmma::row_major;
};
template <>
struct RightLayout<RightSide::rows> {
  using Type = nvcuda::wmma::col_major;
};

struct TileSum {
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> x;
};
struct LeftTile {
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> x;
};
template <RightSide side>
struct RightTile {
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __half,
                         typename RightLayout<side>::Type>
      x;
};

template <class Tile>
__device__ void load_tile(Tile& to, const std::uint16_t* from, int stride) {
  nvcuda::wmma::load_matrix_sync(to.x, reinterpret_cast<const __half*>(from),
                                 static_cast<unsigned>(stride));
}
__device__ inline void clear(TileSum& sum) {
  nvcuda::wmma::fill_fragment(sum.x, 0.0F);
}
template <RightSide side>
__device__ void multiply(TileSum& sum, const LeftTile& a, const RightTile<side>& b) {
  nvcuda::wmma::mma_sync(sum.x, a.x, b.x, sum.x);
}
/// sum += factor * part.
__device__ inline void add(TileSum& sum, const TileSum& part, float factor) {
  KVB_UNROLL
  for (int i = 0; i < sum.x.num_elements; ++i) {
    sum.x.x[i] = std::fma(part.x.x[i], factor, sum.x.x[i]);
  }
}
__device__ inline void store(const TileSum& sum, float* to, int stride) {
  nvcuda::wmma::store_matrix_sync(to, sum.x, static_cast<unsigned>(stride),
                                  nvcuda::wmma::mem_row_major);
}

#else

struct TileSum {
  float x[kTileSide][kTileSide];
};
struct LeftTile {
  float x[kTileSide][kTileSide];  // [row, k]
};
template <RightSide side>
struct RightTile {
  float x[kTileSide][kTileSide];  // [k, column]
};

inline void load_tile(LeftTile& to, const std::uint16_t* from, int stride) {
  for (int r = 0; r < kTileSide; ++r) {
    for (int c = 0; c < kTileSide; ++c) {
      to.x[r][c] = half_to_float(from[r * stride + c]);
    }
  }
}
template <RightSide side>
void load_tile(RightTile<side>& to, const std::uint16_t* from, int stride) {
  for (int r = 0; r < kTileSide; ++r) {
    for (int c = 0; c < kTileSide; ++c) {
      const float x = half_to_float(from[r * stride + c]);
      (side == RightSide::rows ? to.x[c][r] : to.x[r][c]) = x;
    }
  }
}
inline void clear(TileSum& sum) {
  sum = {};
}
template <RightSide side>
void multiply(TileSum& sum, const LeftTile& a, const RightTile<side>& b) {
  for (int r = 0; r < kTileSide; ++r) {
    for (int k = 0; k < kTileSide; ++k) {
      for (int c = 0; c < kTileSide; ++c) {
        sum.x[r][c] += a.x[r][k] * b.x[k][c];  // the product is exact
      }
    }
  }
}
inline void add(TileSum& sum, const TileSum& part, float factor) {
  for (int r = 0; r < kTileSide; ++r) {
    for (int c = 0; c < kTileSide; ++c) {
      sum.x[r][c] = std::fma(part.x[r][c], factor, sum.x[r][c]);
    }
  }
}
inline void store(const TileSum& sum, float* to, int stride) {
  for (int r = 0; r < kTileSide; ++r) {
    std::copy_n(sum.x[r], kTileSide, to + r * stride);
  }
}

#endif

/// Sums of R x C tiles, in a warp's registers.
template <int R, int C>
struct TileSums {
  TileSum x[R][C];

  KVB_HD void clear_all() {
    KVB_UNROLL
    for (int r = 0; r < R; ++r) {
      KVB_UNROLL
      for (int c = 0; c < C; ++c) {
        clear(x[r][c]);
      }
    }
  }

  /// One step of 16: += a b, tile column c < `columns` alone. `a` has R tiles, `b` has `columns`.
  template <RightSide side>
  KVB_HD void multiply_add(const SplitTiles& a, const SplitTiles& b, int columns) {
    LeftTile left[R];
    LeftTile left_low[R];
    KVB_UNROLL
    for (int r = 0; r < R; ++r) {
      load_tile(left[r], a.hi + r * a.next, a.stride);
      if (a.lo != nullptr) {
        load_tile(left_low[r], a.lo + r * a.next, a.stride);
      }
    }
    KVB_UNROLL
    for (int c = 0; c < C; ++c) {
      if (c < columns) {
        RightTile<side> right;
        load_tile(right, b.hi + c * b.next, b.stride);
        KVB_UNROLL
        for (int r = 0; r < R; ++r) {
          TileSum part;
          clear(part);
          multiply(part, left[r], right);
          add(x[r][c], part, 1.0F);
          if (a.lo != nullptr) {
            clear(part);
            multiply(part, left_low[r], right);
            add(x[r][c], part, kLowUnit);
          }
        }
        if (b.lo != nullptr) {
          load_tile(right, b.lo + c * b.next, b.stride);
          KVB_UNROLL
          for (int r = 0; r < R; ++r) {
            TileSum part;
            clear(part);
            multiply(part, left[r], right);
            add(x[r][c], part, kLowUnit);
          }
        }
      }
    }
  }

  /// Row-major, `stride` a multiple of 4, `to` on a boundary of 32 bytes.
  KVB_HD void store_all(float* to, int stride, int columns) const {
    KVB_UNROLL
    for (int r = 0; r < R; ++r) {
      KVB_UNROLL
      for (int c = 0; c < C; ++c) {
        if (c < columns) {
          store(x[r][c], to + r * kTileSide * stride + c * kTileSide, stride);
        }
      }
    }
  }
};

/// Four neighbours, read at once.
struct alignas(16) Quad {
  float x[4];
};

/// Inner products of 16 R rows and 64 columns in shared memory. A row's Quads begin four banks
/// after those of the row before, so that lanes which read one column of eight rows do not collide.
template <int R>
struct alignas(32) ProductTile {
  static constexpr int kRows = R * kTileSide;
  static constexpr int kColumns = 64;
  static constexpr int kQuads = kColumns / 4;
  static constexpr int kStride = kColumns + 4;
  Quad rows[kRows][kQuads + 1];

  KVB_HD float at(int row, int column) const { return rows[row][column / 4].x[column % 4]; }
};

/// to[r, c] = <row `row` + r of a, row `column` + c of b>, times Sa Sb; both in whole tiles, `a`
/// with R of them, `b` with four, and as many channels. By a warp; its lanes then read `to` in
/// for_lanes().
template <int R>
KVB_HD void inner_tile(const SplitRows& a, Index row, const SplitRows& b, Index column,
                       ProductTile<R>& to) {
  constexpr int kTiles = ProductTile<R>::kColumns / kTileSide;
  TileSums<R, kTiles> sums;
  sums.clear_all();
  for (Index t = 0; t < a.depth_tiles; ++t) {
    sums.template multiply_add<RightSide::rows>(a.down(row / kTileSide, t),
                                                b.down(column / kTileSide, t), kTiles);
  }
  meet_warp();  // lanes may still read what was there before
  sums.store_all(to.rows[0][0].x, ProductTile<R>::kStride, kTiles);
}

}  // namespace kvbench
