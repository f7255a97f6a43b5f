// Tests of lib/gpu. nvcc compiles them for a device, the C++ compiler for the emulated one
// (tests/emulated).
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gpu/device.hpp"

namespace kvbench::testing_gpu {

#if defined(KVBENCH_EMULATED_DEVICE)
/// Kernels launched since the program began; a device does not count them.
inline std::optional<std::int64_t> launches() {
  return emulated::card().launches;
}
/// Bytes by which the memory in use may exceed what was asked for.
inline constexpr std::size_t kRounding = 0;
#else
inline std::optional<std::int64_t> launches() {
  return std::nullopt;
}
inline constexpr std::size_t kRounding = 128 * 512;  // CUDA's pool hands out multiples of 512
#endif

/// The device's memory pool, after all its work.
inline cudaMemPool_t idle_pool() {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  return pool;
}
inline std::size_t pool_bytes(cudaMemPoolAttr which) {
  std::uint64_t bytes = 0;
  EXPECT_EQ(cudaMemPoolGetAttribute(idle_pool(), which, &bytes), cudaSuccess);
  return bytes;
}
/// Bytes in use.
inline std::size_t used_bytes() {
  return pool_bytes(cudaMemPoolAttrUsedMemCurrent);
}
/// Most bytes in use since forget_peak.
inline std::size_t peak_bytes() {
  return pool_bytes(cudaMemPoolAttrUsedMemHigh);
}
inline void forget_peak() {
  std::uint64_t none = 0;
  EXPECT_EQ(cudaMemPoolSetAttribute(idle_pool(), cudaMemPoolAttrUsedMemHigh, &none), cudaSuccess);
}

/// A test that needs cuda:0. It must free what it allocates.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!choose_device("auto").cuda) {
      GTEST_SKIP() << "no CUDA device: nothing ran on one";
    }
    before_ = used_bytes();
  }
  void TearDown() override {
    if (!IsSkipped()) {
      EXPECT_EQ(used_bytes(), before_) << "memory that was not freed";
    }
  }

 private:
  std::size_t before_ = 0;
};

}  // namespace kvbench::testing_gpu
