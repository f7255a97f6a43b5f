// The machine that is a CUDA device (core/machine.hpp). Without one it runs on the emulated device
// of tests/emulated alone, so it is kept to memory, copies and launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/error.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Throws IoError (what failed, CUDA's own words) unless `code` is success.
inline void check_cuda(cudaError_t code, const char* what, int ordinal) {
  if (code != cudaSuccess) {
    cudaGetLastError();  // an error that is not sticky must not show up in a later call
    throw IoError("cuda:" + std::to_string(ordinal) + ": " + what + ": " +
                  cudaGetErrorString(code));
  }
}

/// Jobs allocate and free all the time: what they free stays the program's, to be handed out again,
/// until it ends.
inline void keep_pool(int ordinal) {
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, ordinal), "asking for the memory pool", ordinal);
  std::uint64_t all = ~std::uint64_t{0};
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
             "setting up the memory pool", ordinal);
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) block_kernel(Kernel kernel, Index blocks) {
  __shared__ typename Kernel::Shared shared;
  for (Index block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int phases = kernel.phases(block);
    for (int phase = 0; phase < phases; ++phase) {
      kernel.run(phase, block, static_cast<int>(threadIdx.x), shared);
      __syncthreads();
    }
  }
}

/// Every calling thread has a stream of its own (CUDA's per-thread stream): its operations run in
/// order, those of different threads side by side. Thread-safe.
class CudaMachine {
 public:
  /// `scratch_bytes`: see HostMachine.
  CudaMachine(int ordinal, std::size_t scratch_bytes)
      : ordinal_(ordinal), scratch_bytes_(scratch_bytes) {}

  int ordinal() const { return ordinal_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  void* allocate(std::size_t bytes) {
    use();
    void* p = nullptr;
    const cudaError_t code = cudaMallocAsync(&p, bytes, cudaStreamPerThread);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0;
      std::size_t total = 0;
      check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory", ordinal_);
      throw IoError("cuda:" + std::to_string(ordinal_) + ": out of memory: asked for " +
                    std::to_string(bytes) + " bytes, " + std::to_string(free) + " of " +
                    std::to_string(total) +
                    " are free; fewer --threads or --queries need less, --device cpu none");
    }
    check_cuda(code, "allocating", ordinal_);
    return p;
  }

  // Called from destructors: an error here shows up in the next checked call.
  void release(void* p) {
    cudaSetDevice(ordinal_);
    cudaFreeAsync(p, cudaStreamPerThread);
  }

  void copy_in(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) {
      use();
      // From pageable memory: the call returns when `from` has been read.
      check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread),
                 "copying to the device", ordinal_);
    }
  }

  void copy_out(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) {
      use();
      check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread),
                 "copying from the device", ordinal_);
      check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "waiting for the device", ordinal_);
    }
  }

  void fill_zero(void* to, std::size_t bytes) {
    if (bytes > 0) {
      use();
      check_cuda(cudaMemsetAsync(to, 0, bytes, cudaStreamPerThread), "clearing memory", ordinal_);
    }
  }

  template <class Kernel>
  void launch(const Kernel& kernel, Index blocks) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    static_assert(Kernel::kThreads <= 1024 && sizeof(typename Kernel::Shared) <= 48 * 1024);
    if (blocks <= 0) {
      return;
    }
    use();
    constexpr Index kMostBlocks = Index{1} << 30;  // of a grid's first axis: 2^31 - 1
    const auto grid = static_cast<unsigned>(std::min(blocks, kMostBlocks));
    Kernel copy = kernel;
    void* arguments[] = {&copy, &blocks};
    check_cuda(cudaLaunchKernel(block_kernel<Kernel>, dim3(grid), dim3(Kernel::kThreads), arguments,
                                0, cudaStreamPerThread),
               "launching a kernel", ordinal_);
  }

  /// Waits for what this thread launched.
  void wait() {
    use();
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "waiting for the device", ordinal_);
  }

 private:
  void use() { check_cuda(cudaSetDevice(ordinal_), "selecting the device", ordinal_); }

  int ordinal_;
  std::size_t scratch_bytes_;
};

}  // namespace kvbench
