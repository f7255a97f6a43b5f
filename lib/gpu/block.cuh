// Reductions over a thread block, by CUB. All threads must call; all get the result; each ends with
// a barrier.
#pragma once

#include <cub/block/block_reduce.cuh>

#include "core/types.hpp"

namespace kvbench::gpu {

struct Plus {
  template <class T>
  __device__ T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(const T& a, const T& b) const {
    return a < b ? b : a;
  }
};

/// A value and its index.
struct Place {
  double value;
  Index index;
};
/// The larger value; ties to the lower index.
struct LargestFirst {
  __device__ Place operator()(const Place& a, const Place& b) const {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
  }
};
/// The smaller value; ties to the lower index.
struct SmallestFirst {
  __device__ Place operator()(const Place& a, const Place& b) const {
    return b.value < a.value || (b.value == a.value && b.index < a.index) ? b : a;
  }
};

/// Reduces every thread's x by `op` in a fixed order (CUB's), so sums have the same bits in every
/// run.
template <int kThreads, class T, class Op>
__device__ T block_reduce(T x, Op op) {
  using Reduce = cub::BlockReduce<T, kThreads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ T result;
  x = Reduce(storage).Reduce(x, op);
  if (threadIdx.x == 0) {
    result = x;
  }
  __syncthreads();
  x = result;
  __syncthreads();  // storage may be reused
  return x;
}

}  // namespace kvbench::gpu
