// Inner products of rows, a 64 x 64 tile per block of 256 threads, with the CPU's bits
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
constexpr int kTileOwn = kTile / kTileSide;  ///< rows and columns per thread

/// Row (column) of the tile in the thread's acc[r] (acc[.][c]).
__device__ inline int tile_row(int r) {
  return static_cast<int>(threadIdx.x) / kTileSide * kTileOwn + r;
}
__device__ inline int tile_column(int c) {
  return static_cast<int>(threadIdx.x) % kTileSide + c * kTileSide;
}

/// acc[r][c] = sum over t < d of left(tile_row(r), t) * right(tile_column(c), t). Both are called
/// for 64 rows and t < d and return 0 for missing rows. All threads must call; ends with a barrier.
template <class Left, class Right, class T>
__device__ void tile_products(Index d, const Left& left, const Right& right,
                              T (&acc)[kTileOwn][kTileOwn]) {
  constexpr int kDepth = 16;  // channels at a time
  // One more column avoids bank conflicts when a half-warp stores a row's channels.
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
      // Zeros after the last channel do not change sums: +0 never becomes -0.
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
