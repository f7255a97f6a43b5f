// Inner products of rows, a tile of 64 x 64 per block of 256 threads. Each is the CPU's to the bit
// (attention/inner_products.hpp): one FMA per channel, ascending, from 0.
#pragma once

#include <cmath>

#include "core/math.hpp"
#include "core/types.hpp"
#include "gpu/cuda.cuh"

namespace kvbench::gpu {

constexpr int kTile = 64;
constexpr int kTileThreads = 256;
constexpr int kTileSide = 16;                ///< threads along a row of the tile
constexpr int kTileOwn = kTile / kTileSide;  ///< rows, and columns, of a thread

/// Row, or column, of the tile that a thread has at acc[r], or acc[.][c].
__device__ inline int tile_row(int r) {
  return static_cast<int>(threadIdx.x) / kTileSide * kTileOwn + r;
}
__device__ inline int tile_column(int c) {
  return static_cast<int>(threadIdx.x) % kTileSide + c * kTileSide;
}

/// acc[r][c] = sum over t < d of left(tile_row(r), t) * right(tile_column(c), t). Both functions
/// are asked for 64 rows and t < d; rows that are not there are 0. All threads of a block call it;
/// it ends with the block in step.
template <class Left, class Right, class T>
__device__ void tile_products(Index d, const Left& left, const Right& right,
                              T (&acc)[kTileOwn][kTileOwn]) {
  constexpr int kDepth = 16;  // channels at a time
  // One more column: a half-warp stores kDepth channels of a row, each to a bank of its own.
  __shared__ T a[kDepth][kTile + 1];
  __shared__ T b[kDepth][kTile + 1];
  for (auto& row : acc) {
    for (T& x : row) {
      x = T{0};
    }
  }
  for (Index begin = 0; begin < d; begin += kDepth) {
    for (int e = static_cast<int>(threadIdx.x); e < kDepth * kTile; e += kTileThreads) {
      const int i = e / kDepth;
      const int t = e % kDepth;
      // Zeros beyond the last channel change no sum: from +0, none becomes -0.
      const bool there = begin + t < d;
      a[t][i] = there ? left(i, begin + t) : T{0};
      b[t][i] = there ? right(i, begin + t) : T{0};
    }
    __syncthreads();
    KVB_UNROLL
    for (int t = 0; t < kDepth; ++t) {
      T x[kTileOwn];
      T y[kTileOwn];
      KVB_UNROLL
      for (int r = 0; r < kTileOwn; ++r) {
        x[r] = a[t][tile_row(r)];
        y[r] = b[t][tile_column(r)];
      }
      KVB_UNROLL
      for (int r = 0; r < kTileOwn; ++r) {
        KVB_UNROLL
        for (int c = 0; c < kTileOwn; ++c) {
          acc[r][c] = std::fma(x[r], y[c], acc[r][c]);
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace kvbench::gpu
