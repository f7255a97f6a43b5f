// The threads of a block as a team (streams/team.hpp).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/math.hpp"
#include "gpu/block.cuh"
#include "gpu/cuda.cuh"
#include "streams/team.hpp"

namespace kvbench::gpu {

/// All threads of a block, each with an object of its own.
template <int kThreads>
class BlockTeam {
 public:
  template <class F>
  __device__ void each(Index n, const F& f) const {
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      f(i);
    }
    __syncthreads();
  }

  template <class F>
  __device__ void once(const F& f) const {
    if (threadIdx.x == 0) {
      f();
    }
    __syncthreads();
  }

  template <class Value>
  __device__ Found largest(Index n, const Value& value) const {
    return found<LargestFirst>(n, value, -std::numeric_limits<double>::infinity());
  }

  template <class Value>
  __device__ Found smallest(Index n, const Value& value) const {
    return found<SmallestFirst>(n, value, std::numeric_limits<double>::infinity());
  }

  template <class Value>
  __device__ double ordered_sum(Index n, const Value& value) const {
    __shared__ double sum;
    if (threadIdx.x == 0) {
      sum = sum_in_order(n, value);
    }
    __syncthreads();
    const double out = sum;
    __syncthreads();  // all have read it before another call writes
    return out;
  }

  template <class Bound, class Value, class Tie>
  __device__ Searched smallest_bounded(Index n, const Bound& bound, const Value& value,
                                       const Tie& tie) const {
    const Index first = smallest(n, bound).place;
    const auto place = [&](double x, Index i) { return Place{x, (tie(i) << 32) + i}; };
    Place best = place(value(first), first);
    Index asked = threadIdx.x == 0 ? 1 : 0;
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      if (i != first && !(bound(i) > best.value)) {
        best = SmallestFirst()(best, place(value(i), i));
        ++asked;
      }
    }
    best = block_reduce<kThreads>(best, SmallestFirst());
    return {{best.value, best.index & 0xffffffff}, block_reduce<kThreads>(asked, Plus())};
  }

  template <class Is>
  __device__ Index collect(Index n, const Is& is, Index* out) const {
    __shared__ int count;
    once([&] { count = 0; });
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      if (is(i)) {
        out[atomicAdd(&count, 1)] = i;
      }
    }
    __syncthreads();
    const Index all = count;
    __syncthreads();  // all have read it before another call writes
    return all;
  }

  template <class Value>
  __device__ double max(Index n, const Value& value) const {
    double own = -std::numeric_limits<double>::infinity();
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      own = Max()(own, value(i));
    }
    return block_reduce<kThreads>(own, Max());
  }

  template <class Value>
  __device__ void ordered_sums(Index rows, Index n, const Value& value, double* sums) const {
    constexpr int kWarp = 32;
    if (threadIdx.x % kWarp == 0) {  // threads of one warp would wait for each other's memory
      for (Index r = threadIdx.x / kWarp; r < rows; r += kThreads / kWarp) {
        sums[r] = sum_in_order(n, [&](Index i) { return value(r, i); });
      }
    }
    __syncthreads();
  }

  template <class T>
  __device__ void products(const double* rows, Index count, const T* panels, Index columns, Index d,
                           double* out, Index stride) const {
    for (Index c = threadIdx.x; c < columns; c += kThreads) {
      const T* column = panels + in_panels(c, 0, d);
      in_row_tiles(count, [&](Index first, auto tile_rows) {
        constexpr int kRows = tile_rows;
        const double* tile = rows + first * d;
        double sum[kRows] = {};
        for (Index t = 0; t < d; ++t) {
          const auto x = static_cast<double>(column[t * kPanel]);
          KVB_UNROLL
          for (int r = 0; r < kRows; ++r) {
            sum[r] = std::fma(tile[r * d + t], x, sum[r]);
          }
        }
        KVB_UNROLL
        for (int r = 0; r < kRows; ++r) {
          out[(first + r) * stride + c] = sum[r];
        }
      });
    }
    __syncthreads();
  }

 private:
  // What is added next is read before it is needed: additions wait for each other alone.
  template <class Value>
  __device__ static double sum_in_order(Index n, const Value& value) {
    constexpr int kAhead = 8;
    double sum = 0.0;
    Index i = 0;
    for (; i + kAhead <= n; i += kAhead) {
      double x[kAhead];
      KVB_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        x[k] = value(i + k);
      }
      KVB_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        sum += x[k];
      }
    }
    for (; i < n; ++i) {
      sum += value(i);
    }
    return sum;
  }

  template <class First, class Value>
  __device__ static Found found(Index n, const Value& value, double none) {
    constexpr Index kNowhere = std::numeric_limits<Index>::max();
    Place best{none, kNowhere};
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      best = First()(best, Place{value(i), i});
    }
    best = block_reduce<kThreads>(best, First());
    return best.index == kNowhere ? Found{} : Found{best.value, best.index};
  }
};

/// Memory of a stream's state on a device, which must outlive it.
class DeviceArena {
 public:
  explicit DeviceArena(const Device& device) : device_(device) {}

  /// to = `count` elements, all bits 0, that live as long as the arena.
  template <class T>
  void take(T*& to, Index count) {
    blocks_.emplace_back(device_, count * static_cast<Index>(sizeof(T)));
    blocks_.back().zero();
    to = reinterpret_cast<T*>(blocks_.back().data());
  }

 private:
  const Device& device_;
  std::vector<Array<unsigned char>> blocks_;
};

}  // namespace kvbench::gpu
