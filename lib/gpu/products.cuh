// Sums of products, a tile of 64 x 128 (float64: 64 x 64) per block of 128 threads, with the CPU's
// bits (attention/inner_products.hpp): one FMA per term, ascending, from 0. A thread loads the next
// terms into registers while it multiplies those in shared memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/math.hpp"
#include "core/types.hpp"
#include "gpu/cuda.cuh"

namespace kvbench::gpu {

constexpr int kTile = 64;  ///< rows
constexpr int kTileThreads = 128;
constexpr int kTileSide = 16;  ///< threads along a row of the tile
constexpr int kTileLines = kTileThreads / kTileSide;
constexpr int kTileOwn = kTile / kTileLines;  ///< rows per thread
constexpr int kTileDepth = 16;                ///< terms at a time
/// Columns per thread, and of the tile.
template <class T>
constexpr int kOwnColumns = sizeof(T) == 4 ? 8 : 4;
template <class T>
constexpr int kTileColumns = kTileSide* kOwnColumns<T>;
template <class T>
using OwnSums = T[kTileOwn][kOwnColumns<T>];
/// Blocks per multiprocessor that registers shall suffice for.
template <class T>
constexpr int kTileBlocks = sizeof(T) == 4 ? 3 : 2;

/// Row (column) of the tile in the thread's acc[r] (acc[.][c]).
__device__ inline int tile_row(int r) {
  return static_cast<int>(threadIdx.x) / kTileSide + r * kTileLines;
}
__device__ inline int tile_column(int c) {
  return static_cast<int>(threadIdx.x) % kTileSide + c * kTileSide;
}

/// `kCount` neighbours that are read and written by one instruction.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T x[kCount];
};
/// What a thread reads from shared memory at a time.
template <class T>
using Vector = Pack<T, 16 / static_cast<int>(sizeof(T))>;
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// The two sides of a tile in shared memory. A thread's rows and columns form whole vectors there,
// so their places differ from their numbers.
template <class T>
struct LeftSide {
  static constexpr int kCount = kTile;
  __device__ static int number(int place) {
    return place / kTileOwn + place % kTileOwn * kTileLines;
  }
  __device__ static int place(int number) {
    return number % kTileLines * kTileOwn + number / kTileLines;
  }
};
template <class T>
struct RightSide {
  static constexpr int kCount = kTileColumns<T>;
  static constexpr int kLine = kTileSide * kVector<T>;
  __device__ static int number(int place) {
    return place % kLine / kVector<T> + (place / kLine * kVector<T> + place % kVector<T>)*kTileSide;
  }
  __device__ static int place(int number) {
    const int c = number / kTileSide;
    return c / kVector<T> * kLine + number % kTileSide * kVector<T> + c % kVector<T>;
  }
};
/// Padded against bank conflicts on writes.
template <class T, class Side>
struct alignas(16) Strip {
  T x[kTileDepth][Side::kCount + kVector<T>];
};

template <class E>
using Four = Pack<E, 4>;

/// p[0..3]; 0 from p[rest] on.
template <class E>
__device__ Four<E> load_four(const E* p, int rest) {
  if (rest >= 4 && reinterpret_cast<std::uintptr_t>(p) % sizeof(Four<E>) == 0) {
    return *reinterpret_cast<const Four<E>*>(p);
  }
  Four<E> out;
  KVB_UNROLL
  for (int q = 0; q < 4; ++q) {
    out.x[q] = q < rest ? p[q] : E{0};
  }
  return out;
}

struct Same {
  template <class E>
  __device__ E operator()(E x, int /*at*/) const {
    return x;
  }
};

/// A side whose rows lie along the sum: element(row(i)[t], t) for t < d. row(i) may be null: zeros.
template <class T, class Side, class E, class Element>
class AlongSum {
 public:
  template <class Row>
  __device__ AlongSum(Index d, const Row& row, Element element)
      : d_(static_cast<int>(d)), element_(element) {
    KVB_UNROLL
    for (int f = 0; f < kFours; ++f) {
      row_[f] = row(Side::number(place(f)));
    }
  }
  __device__ void load(int begin) {
    begin_ = begin + term();
    KVB_UNROLL
    for (int f = 0; f < kFours; ++f) {
      next_[f] = row_[f] == nullptr ? Four<E>{} : load_four(row_[f] + begin_, d_ - begin_);
    }
  }
  __device__ void store(Strip<T, Side>& to) const {
    KVB_UNROLL
    for (int f = 0; f < kFours; ++f) {
      KVB_UNROLL
      for (int q = 0; q < 4; ++q) {
        // Zeros after the last term do not change sums: +0 never becomes -0.
        to.x[term() + q][place(f)] =
            begin_ + q < d_ ? static_cast<T>(element_(next_[f].x[q], begin_ + q)) : T{0};
      }
    }
  }

 private:
  static constexpr int kPerRow = kTileDepth / 4;
  static constexpr int kFours = Side::kCount * kPerRow / kTileThreads;
  __device__ static int place(int f) {
    return (static_cast<int>(threadIdx.x) + f * kTileThreads) / kPerRow;
  }
  __device__ static int term() { return static_cast<int>(threadIdx.x) % kPerRow * 4; }

  int d_;
  Element element_;
  int begin_ = 0;
  const E* row_[kFours];
  Four<E> next_[kFours];
};

/// A side whose columns lie along the sum: element(row(t)[i], i) for t < d, i < count.
template <class T, class Side, class E, class Row, class Element>
class AcrossSum {
 public:
  __device__ AcrossSum(Index d, Index count, const Row& row, Element element)
      : d_(static_cast<int>(d)),
        count_(static_cast<int>(count < Side::kCount ? count : Side::kCount)),
        row_(row),
        element_(element) {}
  __device__ void load(int begin) {
    begin_ = begin;
    KVB_UNROLL
    for (int f = 0; f < kFours; ++f) {
      const int t = begin + term(f);
      next_[f] = t < d_ ? load_four(row_(t) + column(f), count_ - column(f)) : Four<E>{};
    }
  }
  __device__ void store(Strip<T, Side>& to) const {
    KVB_UNROLL
    for (int f = 0; f < kFours; ++f) {
      KVB_UNROLL
      for (int q = 0; q < 4; ++q) {
        const int i = column(f) + q;
        to.x[term(f)][Side::place(i)] =
            begin_ + term(f) < d_ && i < count_ ? static_cast<T>(element_(next_[f].x[q], i)) : T{0};
      }
    }
  }

 private:
  static constexpr int kPerTerm = Side::kCount / 4;
  static constexpr int kFours = kTileDepth * kPerTerm / kTileThreads;
  __device__ static int term(int f) {
    return (static_cast<int>(threadIdx.x) + f * kTileThreads) / kPerTerm;
  }
  __device__ static int column(int f) {
    return (static_cast<int>(threadIdx.x) + f * kTileThreads) % kPerTerm * 4;
  }

  int d_, count_;
  int begin_ = 0;
  Row row_;
  Element element_;
  Four<E> next_[kFours];
};

template <class Row>
using ElementOf = std::remove_cv_t<std::remove_pointer_t<std::invoke_result_t<Row, int>>>;

template <class T, template <class> class Side, class Row, class Element = Same>
__device__ auto along_sum(Index d, const Row& row, Element element = {}) {
  return AlongSum<T, Side<T>, ElementOf<Row>, Element>(d, row, element);
}
template <class T, template <class> class Side, class Row, class Element = Same>
__device__ auto across_sum(Index d, Index count, const Row& row, Element element = {}) {
  return AcrossSum<T, Side<T>, ElementOf<Row>, Row, Element>(d, count, row, element);
}

/// acc += left * right for kTileDepth terms and the first kRows of a thread's rows.
template <int kRows, class T>
__device__ void add_products(const Strip<T, LeftSide<T>>& left, const Strip<T, RightSide<T>>& right,
                             OwnSums<T>& acc) {
  const int line = static_cast<int>(threadIdx.x) / kTileSide * kTileOwn;
  const int side = static_cast<int>(threadIdx.x) % kTileSide * kVector<T>;
  for (int t = 0; t < kTileDepth; ++t) {
    Vector<T> x[ceil_div(kRows, kVector<T>)];
    Vector<T> y[kOwnColumns<T> / kVector<T>];
    KVB_UNROLL
    for (int r = 0; r < kRows; r += kVector<T>) {
      x[r / kVector<T>] = reinterpret_cast<const Vector<T>&>(left.x[t][line + r]);
    }
    KVB_UNROLL
    for (int c = 0; c < kOwnColumns<T>; c += kVector<T>) {
      y[c / kVector<T>] = reinterpret_cast<const Vector<T>&>(right.x[t][side + c * kTileSide]);
    }
    KVB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVB_UNROLL
      for (int c = 0; c < kOwnColumns<T>; ++c) {
        acc[r][c] = std::fma(x[r / kVector<T>].x[r % kVector<T>],
                             y[c / kVector<T>].x[c % kVector<T>], acc[r][c]);
      }
    }
  }
}

/// acc[r][c] = sum over t < d of left(tile_row(r), t) * right(tile_column(c), t), for the first
/// `rows` rows of the tile at least. All threads must call; ends with a barrier.
template <class T, class Left, class Right>
__device__ void tile_products(Index d, Left left, Right right, OwnSums<T>& acc,
                              Index rows = kTile) {
  __shared__ Strip<T, LeftSide<T>> a;
  __shared__ Strip<T, RightSide<T>> b;
  for (auto& row : acc) {
    for (T& x : row) {
      x = T{0};
    }
  }
  left.load(0);
  right.load(0);
  for (int begin = 0; begin < d; begin += kTileDepth) {
    left.store(a);
    right.store(b);
    __syncthreads();
    if (begin + kTileDepth < d) {
      left.load(begin + kTileDepth);
      right.load(begin + kTileDepth);
    }
    if (rows <= kTileLines) {  // a stream's step has few
      add_products<1, T>(a, b, acc);
    } else {
      add_products<kTileOwn, T>(a, b, acc);
    }
    __syncthreads();
  }
}

}  // namespace kvbench::gpu
