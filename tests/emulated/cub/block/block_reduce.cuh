// In place of CUB's header: as much of cub::BlockReduce as lib/gpu calls. A tree over the threads,
// as CUB's raking reduction has one; the result is thread 0's.
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
    const unsigned thread = threadIdx.x;
    storage_.x[thread] = x;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (static_cast<int>(thread) < half) {
        storage_.x[thread] =
            op(storage_.x[thread], storage_.x[thread + static_cast<unsigned>(half)]);
      }
      __syncthreads();
    }
    return storage_.x[0];
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
