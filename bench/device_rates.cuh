// What a CUDA card does at its best, measured on the card itself: the bounds that bench_device.cu
// holds the kernels against. cuBLAS is loaded where the machine has it, so that a program that was
// carried to a machine with only a driver starts all the same.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/cuda.cuh"
#include "core/machine.hpp"
#if KVBENCH_HAVE_CUBLAS
#include <cublas_v2.h>
#include <cuda_bf16.h>
#endif

namespace kvbench::bench {

/// Time between two points of the calling thread's stream (CudaMachine's own), what the host does
/// meanwhile included.
class StreamClock {
 public:
  explicit StreamClock(int ordinal) : ordinal_(ordinal) {
    check_cuda(cudaEventCreate(&begin_), "creating an event", ordinal_);
    check_cuda(cudaEventCreate(&end_), "creating an event", ordinal_);
  }
  ~StreamClock() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  void start() { check_cuda(cudaEventRecord(begin_, cudaStreamPerThread), "timing", ordinal_); }
  /// Waits; seconds since start().
  double stop() {
    check_cuda(cudaEventRecord(end_, cudaStreamPerThread), "timing", ordinal_);
    check_cuda(cudaEventSynchronize(end_), "waiting for the device", ordinal_);
    float ms = 0.0F;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "timing", ordinal_);
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  int ordinal_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

/// The least of ten times of `run`, after three runs that are not timed.
template <class Run>
double best_seconds(int ordinal, Run run) {
  StreamClock clock(ordinal);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 13; ++i) {
    clock.start();
    run();
    const double seconds = clock.stop();
    best = i < 3 ? best : std::min(best, seconds);
  }
  return best;
}

/// Rates of one card; 0 where not measured.
struct CardRates {
  double copy = 0.0;            ///< bytes/s read and written, copying 1 GiB on the card
  double float64_fma = 0.0;     ///< flop/s outside the tensor cores, an FMA counted as 2
  double float64_matrix = 0.0;  ///< flop/s of cuBLAS, 8192^3 products, as the next two
  double tf32_matrix = 0.0;     ///< float32 in and out
  double bf16_matrix = 0.0;     ///< bfloat16 in and out, float32 sums
};

inline double copy_rate(CudaMachine& machine) {
  constexpr Index kBytes = Index{1} << 30;
  Array<char, CudaMachine> from(machine, kBytes);
  const Array<char, CudaMachine> to(machine, kBytes);
  from.zero();
  const double seconds = best_seconds(machine.ordinal(), [&] {
    check_cuda(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(kBytes),
                               cudaMemcpyDeviceToDevice, cudaStreamPerThread),
               "copying on the device", machine.ordinal());
  });
  return 2.0 * static_cast<double>(kBytes) / seconds;
}

/// Chains of dependent FMAs, eight of them per thread to hide their latency.
struct FmaChains {
  static constexpr int kThreads = 256;
  static constexpr int kChains = 8;
  static constexpr int kRounds = 4096;
  struct Shared {};

  double factor, term;
  double* out;  // [blocks * kThreads]

  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index block, int thread, Shared&) const {
    double x[kChains];
    for (int c = 0; c < kChains; ++c) {
      x[c] = static_cast<double>(thread + c);
    }
    for (int round = 0; round < kRounds; ++round) {
      for (int c = 0; c < kChains; ++c) {
        x[c] = std::fma(x[c], factor, term);
      }
    }
    double sum = 0.0;
    for (int c = 0; c < kChains; ++c) {
      sum += x[c];
    }
    out[block * kThreads + thread] = sum;  // or the compiler would leave the loop out
  }
};

inline int multiprocessors(int ordinal) {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal),
             "reading properties", ordinal);
  return count;
}

inline double float64_fma_rate(CudaMachine& machine) {
  const Index blocks = Index{32} * multiprocessors(machine.ordinal());  // 8 fit on each at a time
  const Array<double, CudaMachine> out(machine, blocks * FmaChains::kThreads);
  const double seconds = best_seconds(machine.ordinal(), [&] {
    machine.launch(FmaChains{0.999, 0.001, out.data()}, blocks);
  });
  return 2.0 * FmaChains::kChains * FmaChains::kRounds *
         static_cast<double>(blocks * FmaChains::kThreads) / seconds;
}

#if KVBENCH_HAVE_CUBLAS

/// Numbers in [-1, 1): with zeros a card draws less power and runs faster than it can otherwise.
template <class T>
struct Scatter {
  static constexpr int kThreads = 256;
  struct Shared {};

  T* out;
  Index count;

  Index blocks() const { return (count + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index i = block * kThreads + thread;
    if (i < count) {
      const auto bits = static_cast<unsigned>(
          static_cast<unsigned long long>(i + 1) * 0x9E3779B97F4A7C15ULL >> 40);
      out[i] = static_cast<T>(static_cast<float>(bits) * 0x1p-23F - 1.0F);
    }
  }
};

/// cuBLAS of the version that this program was compiled for.
class Cublas {
 public:
  explicit Cublas(int ordinal) : ordinal_(ordinal) {
    const std::string name = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
    library_ = dlopen(name.c_str(), RTLD_NOW);
    if (library_ == nullptr) {
      return;
    }
    const auto create = find<Create>("cublasCreate_v2");
    const auto set_stream = find<SetStream>("cublasSetStream_v2");
    destroy_ = find<Destroy>("cublasDestroy_v2");
    multiply_ = find<Multiply>("cublasGemmEx");
    if (create == nullptr || set_stream == nullptr || destroy_ == nullptr || multiply_ == nullptr ||
        create(&handle_) != CUBLAS_STATUS_SUCCESS) {
      handle_ = nullptr;
    } else if (set_stream(handle_, cudaStreamPerThread) != CUBLAS_STATUS_SUCCESS) {
      destroy_(handle_);
      handle_ = nullptr;
    }
  }
  ~Cublas() {
    if (handle_ != nullptr) {
      destroy_(handle_);
    }
    if (library_ != nullptr) {
      dlclose(library_);
    }
  }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  bool usable() const { return handle_ != nullptr; }

  /// flop/s of products of square matrices of T; `Factor`: the type of alpha and beta. 0 where
  /// cuBLAS refuses.
  template <class T, class Factor>
  double rate(CudaMachine& machine, cudaDataType_t type, cublasComputeType_t compute) const {
    constexpr int kSide = 8192;
    constexpr Index kCount = Index{kSide} * kSide;
    const Array<T, CudaMachine> a(machine, kCount);
    const Array<T, CudaMachine> b(machine, kCount);
    const Array<T, CudaMachine> c(machine, kCount);
    for (const Array<T, CudaMachine>* m : {&a, &b}) {
      const Scatter<T> scatter{m->data(), kCount};
      machine.launch(scatter, scatter.blocks());
    }
    const Factor one = 1;
    const Factor zero = 0;
    bool good = true;
    const double seconds = best_seconds(ordinal_, [&] {
      good = multiply_(handle_, CUBLAS_OP_T, CUBLAS_OP_N, kSide, kSide, kSide, &one, a.data(), type,
                       kSide, b.data(), type, kSide, &zero, c.data(), type, kSide, compute,
                       CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS &&
             good;
    });
    return good ? 2.0 * std::pow(kSide, 3) / seconds : 0.0;
  }

 private:
  using Create = cublasStatus_t (*)(cublasHandle_t*);
  using Destroy = cublasStatus_t (*)(cublasHandle_t);
  using SetStream = cublasStatus_t (*)(cublasHandle_t, cudaStream_t);
  using Multiply = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int,
                                      int, int, const void*, const void*, cudaDataType, int,
                                      const void*, cudaDataType, int, const void*, void*,
                                      cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  int ordinal_;
  void* library_ = nullptr;
  cublasHandle_t handle_ = nullptr;
  Destroy destroy_ = nullptr;
  Multiply multiply_ = nullptr;
};

#endif  // KVBENCH_HAVE_CUBLAS

/// Takes some seconds and, with cuBLAS, 2 GB.
inline CardRates measure_card(CudaMachine& machine) {
  CardRates out;
  out.copy = copy_rate(machine);
  out.float64_fma = float64_fma_rate(machine);
#if KVBENCH_HAVE_CUBLAS
  if (const Cublas blas(machine.ordinal()); blas.usable()) {
    out.float64_matrix = blas.rate<double, double>(machine, CUDA_R_64F, CUBLAS_COMPUTE_64F);
    out.tf32_matrix = blas.rate<float, float>(machine, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32);
    out.bf16_matrix = blas.rate<__nv_bfloat16, float>(machine, CUDA_R_16BF, CUBLAS_COMPUTE_32F);
  }
#endif
  return out;
}

}  // namespace kvbench::bench
