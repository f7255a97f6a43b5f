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

/// Waits for the device, then returns an attribute of its memory pool: bytes in use now
/// (UsedMemCurrent), or at most since `forget_peak` (UsedMemHigh).
inline std::size_t pool_bytes(cudaMemPoolAttr which) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaMemPool_t pool = nullptr;
  std::uint64_t bytes = 0;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, which, &bytes), cudaSuccess);
  return bytes;
}
inline std::size_t used_bytes() {
  return pool_bytes(cudaMemPoolAttrUsedMemCurrent);
}
inline std::size_t peak_bytes() {
  return pool_bytes(cudaMemPoolAttrUsedMemHigh);
}
inline void forget_peak() {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaMemPool_t pool = nullptr;
  std::uint64_t none = 0;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none), cudaSuccess);
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
