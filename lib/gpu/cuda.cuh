// Errors, memory and launches of a device. Every CPU thread has its own stream (CUDA's per-thread
// stream): operations are ordered within a thread and concurrent across threads.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
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

/// Throws OutOfMemory or another IoError (what failed, CUDA's message) unless `code` is success.
inline void check(cudaError_t code, const char* what, int ordinal) {
  if (code != cudaSuccess) {
    cudaGetLastError();  // reset, so that a later call does not report it
    const std::string text =
        "cuda:" + std::to_string(ordinal) + ": " + what + ": " + cudaGetErrorString(code);
    if (code == cudaErrorMemoryAllocation) {
      throw OutOfMemory(text);
    }
    throw IoError(text);
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
    cudaError_t code = allocate_at(&p, bytes);
    if (code == cudaErrorMemoryAllocation) {  // the pool may hold what other threads have freed
      cudaGetLastError();
      wait();
      trim_pool();
      code = allocate_at(&p, bytes);
    }
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
    if (has_pool()) {
      cudaFreeAsync(p, cudaStreamPerThread);
    } else {
      cudaStreamSynchronize(cudaStreamPerThread);
      cudaFree(p);
    }
  }

  /// Whether memory is allocated and freed in the order of a stream; some virtual devices cannot.
  bool has_pool() const {
    int has = 0;
    return cudaDeviceGetAttribute(&has, cudaDevAttrMemoryPoolsSupported, ordinal_) == cudaSuccess &&
           has != 0;
  }

  /// Requires has_pool().
  cudaMemPool_t pool() const {
    cudaMemPool_t out = nullptr;
    check(cudaDeviceGetDefaultMemPool(&out, ordinal_), "getting the memory pool", ordinal_);
    return out;
  }

  /// Gives the pool's free memory back to the device.
  void trim_pool() const {
    if (has_pool()) {
      check(cudaMemPoolTrimTo(pool(), 0), "trimming the memory pool", ordinal_);
    }
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
  cudaError_t allocate_at(void** p, std::size_t bytes) const {
    return has_pool() ? cudaMallocAsync(p, bytes, cudaStreamPerThread) : cudaMalloc(p, bytes);
  }

  int ordinal_;
  std::size_t scratch_bytes_;
};

/// A thread's pinned memory, through which it uploads to one device: an asynchronous copy may read
/// other memory after its caller changed it.
class Staging {
 public:
  explicit Staging(const Device& device) : device_(device) {
    device_.use();
    if (cudaMallocHost(&ring_, kBytes) != cudaSuccess) {
      cudaGetLastError();  // none to be had: uploads wait
      ring_ = nullptr;
    }
  }
  ~Staging() {
    cudaSetDevice(device_.ordinal());
    cudaStreamSynchronize(cudaStreamPerThread);
    cudaFreeHost(ring_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// This thread's for `device`.
  static Staging& of_thread(const Device& device) {
    static thread_local std::map<int, Staging> all;
    return all.try_emplace(device.ordinal(), device).first->second;
  }

  /// Copies `bytes` from the host, which may then reuse `from`.
  void upload(void* to, const void* from, std::size_t bytes) {
    device_.use();
    if (ring_ == nullptr) {
      copy(to, from, bytes);
      device_.wait();
      return;
    }
    for (std::size_t done = 0; done < bytes;) {
      if (used_ == kBytes) {
        device_.wait();
        used_ = 0;
      }
      const std::size_t part = std::min(bytes - done, kBytes - used_);
      char* staged = static_cast<char*>(ring_) + used_;
      std::memcpy(staged, static_cast<const char*>(from) + done, part);
      copy(static_cast<char*>(to) + done, staged, part);
      used_ += part;
      done += part;
    }
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  void copy(void* to, const void* from, std::size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread),
          "copying to the device", device_.ordinal());
  }

  Device device_;
  void* ring_ = nullptr;
  std::size_t used_ = 0;  // since the last wait
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
      Staging::of_thread(*device_).upload(data_, from.data(), from.size_bytes());
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
