// Errors, memory and launches of a device. Every CPU thread has its own stream (CUDA's per-thread
// stream): operations are ordered within a thread and concurrent across threads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench::gpu {

/// ceil(a / b); a >= 0, b > 0.
KVB_HD constexpr Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}

/// Throws IoError (what failed, CUDA's message) unless `code` is success.
inline void check(cudaError_t code, const char* what, int ordinal) {
  if (code != cudaSuccess) {
    cudaGetLastError();  // reset, so that a later call does not report it
    throw IoError("cuda:" + std::to_string(ordinal) + ": " + what + ": " +
                  cudaGetErrorString(code));
  }
}

/// A device and the byte limit of a scratch array. Thread-safe.
class Device {
 public:
  Device(int ordinal, std::size_t scratch_bytes)
      : ordinal_(ordinal), scratch_bytes_(scratch_bytes) {}

  int ordinal() const { return ordinal_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  void use() const { check(cudaSetDevice(ordinal_), "selecting the device", ordinal_); }

  void* allocate(std::size_t bytes) const {
    use();
    void* p = nullptr;
    const cudaError_t code = cudaMallocAsync(&p, bytes, cudaStreamPerThread);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0;
      std::size_t total = 0;
      check(cudaMemGetInfo(&free, &total), "getting free memory", ordinal_);
      throw OutOfMemory("cuda:" + std::to_string(ordinal_) + ": out of memory: asked for " +
                        std::to_string(bytes) + " bytes, " + std::to_string(free) + " of " +
                        std::to_string(total) +
                        " are free, expected fewer --threads or --queries, or --device cpu");
    }
    check(code, "allocating", ordinal_);
    return p;
  }

  // Called from destructors: the next checked call reports errors.
  void release(void* p) const {
    cudaSetDevice(ordinal_);
    cudaFreeAsync(p, cudaStreamPerThread);
  }

  void wait() const {
    use();
    check(cudaStreamSynchronize(cudaStreamPerThread), "waiting for the device", ordinal_);
  }

  /// Launches kernel<<<blocks, threads>>>(arguments...) on this thread's stream; nothing if blocks
  /// is 0.
  template <class... Parameters, class... Arguments>
  void launch(void (*kernel)(Parameters...), Index blocks, int threads,
              Arguments&&... arguments) const {
    if (blocks <= 0) {
      return;
    }
    use();
    std::tuple<Parameters...> copies{static_cast<Parameters>(arguments)...};
    std::apply(
        [&](auto&... copy) {
          void* pointers[] = {static_cast<void*>(&copy)...};
          check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                                 dim3(static_cast<unsigned>(threads)), pointers, 0,
                                 cudaStreamPerThread),
                "launching a kernel", ordinal_);
        },
        copies);
  }

 private:
  int ordinal_;
  std::size_t scratch_bytes_;
};

/// `size()` uninitialised elements in device memory. The device must outlive it. Not copyable.
template <class T>
class Array {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  Array() = default;
  Array(const Device& device, Index size) : device_(&device), size_(size) {
    if (size > 0) {
      data_ = static_cast<T*>(device.allocate(bytes()));
    }
  }
  Array(const Device& device, std::span<const T> from)
      : Array(device, static_cast<Index>(from.size())) {
    put(from);
  }
  ~Array() {
    if (data_ != nullptr) {
      device_->release(data_);
    }
  }
  Array(Array&& o) noexcept { swap(o); }
  Array& operator=(Array&& o) noexcept {
    swap(o);
    return *this;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  Index size() const { return size_; }

  /// Copies from the host, which may then reuse `from`; from.size() <= size().
  void put(std::span<const T> from) {
    if (!from.empty()) {
      device_->use();
      check(cudaMemcpyAsync(data_, from.data(), from.size_bytes(), cudaMemcpyHostToDevice,
                            cudaStreamPerThread),
            "copying to the device", device_->ordinal());
    }
  }
  /// Copies to the host after all earlier launches; to.size() <= size().
  void get(std::span<T> to) const {
    if (!to.empty()) {
      device_->use();
      check(cudaMemcpyAsync(to.data(), data_, to.size_bytes(), cudaMemcpyDeviceToHost,
                            cudaStreamPerThread),
            "copying from the device", device_->ordinal());
      device_->wait();
    }
  }
  void set_zero() {
    if (size_ > 0) {
      device_->use();
      check(cudaMemsetAsync(data_, 0, bytes(), cudaStreamPerThread), "clearing memory",
            device_->ordinal());
    }
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }
  void swap(Array& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
  }

  const Device* device_ = nullptr;
  T* data_ = nullptr;
  Index size_ = 0;
};

}  // namespace kvbench::gpu
