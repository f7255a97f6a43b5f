// A thread block as a team (streams/team.hpp).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/math.hpp"
#include "gpu/block.cuh"
#include "gpu/cuda.cuh"
#include "gpu/head.cuh"
#include "streams/attend.hpp"
#include "streams/team.hpp"

namespace kvbench::gpu {

/// All threads of a block; each has its own object.
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
  __device__ double sum(Index n, const Value& value) const {
    __shared__ double result;
    sums(
        1, n, [&](Index, Index i) { return value(i); }, &result);
    const double out = result;
    __syncthreads();  // all have read it before another call writes
    return out;
  }

  template <class Bound, class Value, class Tie>
  __device__ Searched smallest_bounded(Index n, const Bound& bound, const Value& value,
                                       const Tie& tie) const {
    const Index first = smallest(n, bound).index;
    const auto place = [&](double x, Index i) { return Place{x, (tie(i) << 32) + i}; };
    Place best = place(value(first), first);
    Index evaluated = threadIdx.x == 0 ? 1 : 0;
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      if (i != first && !(bound(i) > best.value)) {
        best = SmallestFirst()(best, place(value(i), i));
        ++evaluated;
      }
    }
    best = block_reduce<kThreads>(best, SmallestFirst());
    return {{best.value, best.index & 0xffffffff}, block_reduce<kThreads>(evaluated, Plus())};
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
  __device__ auto max(Index n, const Value& value) const {
    using T = decltype(value(n));
    T own = -std::numeric_limits<T>::infinity();
    for (Index i = threadIdx.x; i < n; i += kThreads) {
      own = Max()(own, value(i));
    }
    return block_reduce<kThreads>(own, Max());
  }

  template <class Value>
  __device__ void sums(Index rows, Index n, const Value& value, double* out) const {
    static_assert(kThreads % kSumLanes == 0);
    __shared__ double lanes[kThreads / kSumLanes][kSumLanes];
    const Index row = threadIdx.x / kSumLanes;
    const Index lane = threadIdx.x % kSumLanes;
    for (Index first = 0; first < rows; first += kThreads / kSumLanes) {
      const Index r = first + row;
      double own = 0.0;
      for (Index i = lane; r < rows && i < n; i += kSumLanes) {
        own += static_cast<double>(value(r, i));
      }
      lanes[row][lane] = own;
      __syncthreads();
      if (lane == 0 && r < rows) {
        out[r] = joined_lanes(lanes[row]);
      }
      __syncthreads();
    }
  }

  template <class T, class Column>
  __device__ void products(const T* rows, Index count, const Column* panels, Index columns, Index d,
                           T* out, Index stride) const {
    constexpr int kChannels = kThreads < 256 ? kThreads : 256;  // of a tile's rows at a time
    [[maybe_unused]] __shared__ T own[kMaxTileRows][kChannels];
    const auto thread = static_cast<int>(threadIdx.x);
    in_row_tiles(count, [&](Index first, auto tile_rows) {
      constexpr int kRows = tile_rows;
      for (Index c0 = 0; c0 < columns; c0 += kThreads) {
        const Index c = c0 + thread;
        T sum[kRows] = {};
        for (Index t0 = 0; t0 < d; t0 += kChannels) {
          const auto channels = static_cast<int>(d - t0 < kChannels ? d - t0 : kChannels);
          if (c0 == 0 || d > kChannels) {
            __syncthreads();
            for (int r = 0; thread < channels && r < kRows; ++r) {
              own[r][thread] = rows[(first + r) * d + t0 + thread];
            }
            __syncthreads();
          }
          const Column* column = panels + in_panels(c, t0, d);
          for (int t = 0; c < columns && t < channels; ++t) {
            const auto x = static_cast<T>(column[t * kPanel]);
            KVB_UNROLL
            for (int r = 0; r < kRows; ++r) {
              sum[r] = std::fma(own[r][t], x, sum[r]);
            }
          }
        }
        for (int r = 0; c < columns && r < kRows; ++r) {
          out[(first + r) * stride + c] = sum[r];
        }
      }
    });
    __syncthreads();
  }

 private:
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

/// `head` as the streams read it.
inline StreamHead device_head(const DeviceHead& head) {
  return stream_head(*head.host, head.k.data(), head.q_rows.data(), head.sink_logits());
}

class DeviceArena {
 public:
  explicit DeviceArena(const Device& device) : device_(device) {}

  /// Sets `to` to `count` zeroed elements that live as long as the arena.
  template <class T>
  void allocate(T*& to, Index count) {
    blocks_.emplace_back(device_, count * static_cast<Index>(sizeof(T)));
    blocks_.back().set_zero();
    to = reinterpret_cast<T*>(blocks_.back().data());
  }

 private:
  const Device& device_;
  std::vector<Array<unsigned char>> blocks_;
};

}  // namespace kvbench::gpu
