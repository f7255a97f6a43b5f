// In place of CUB's header: as much of cub::BlockReduce as lib/gpu calls. A tree over the threads'
// values; CUB's own order of sums is another. The result is thread 0's. Thread 0 joins them alone:
// a barrier for each level would take most of the time of the tests.
#pragma once

#include "cuda_runtime.h"

namespace cub {

template <class T, int kThreads>
class BlockReduce {
 public:
  struct TempStorage {
    T x[kThreads];
  };

  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  template <class Op>
  T Reduce(T x, Op op) {
    storage_.x[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x != 0) {
      return x;
    }
    for (int half = kThreads / 2; half > 0; half /= 2) {
      for (int thread = 0; thread < half; ++thread) {
        storage_.x[thread] = op(storage_.x[thread], storage_.x[thread + half]);
      }
    }
    return storage_.x[0];
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
