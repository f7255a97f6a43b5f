// What a device lacks and what a backend refuses (gpu/device.hpp).
#include <stdexcept>

#include "gpu/device.hpp"
#include "make_head.hpp"
#include "whole_device.hpp"

namespace kvbench {
namespace {

using testing_gpu::expect_says;
using testing_gpu::io_error;
using testing_gpu::WholeDevice;

constexpr std::size_t kScratch = std::size_t{1} << 20;

TEST(EmulatedBackend, LacksAreNamed) {
  const WholeDevice whole;
  EXPECT_EQ(device_info(0).model, "emulated device");
  EXPECT_EQ(device_info(0).driver, "13.0");
  EXPECT_EQ(device_info(0).total_bytes, emulated::card().bytes);
  EXPECT_EQ(choose_device("auto").text(), "cuda:0");
  expect_says(io_error([] { device_info(1); }), "--device cuda:1: absent, expected one of the 1 ");
  emulated::card().has_kernels = false;
  expect_says(io_error([] { device_info(0); }),
              "this is emulated device, for which this program holds no kernels, expected --device "
              "cpu, or a build with CMAKE_CUDA_ARCHITECTURES=90");
  EXPECT_EQ(choose_device("auto").text(), "cpu");
  emulated::card().has_kernels = true;
  emulated::card().devices = 0;
  expect_says(io_error([] { device_info(0); }),
              "no device can be used here (no device is detected)");
  EXPECT_EQ(choose_device("auto").text(), "cpu");
  emulated::card().devices = 1;
  emulated::card().driver_too_old = true;
  expect_says(io_error([] { device_info(0); }), "driver version is insufficient");
}

TEST(EmulatedBackend, MemoryThatDoesNotSufficeIsNamed) {
  const WholeDevice whole;
  const KvHead head = make_head({200, 20, 16, 16, 1}, 1);
  emulated::card().bytes = 20000;
  const std::string text = io_error([&] { open_gpu(head, 0, kScratch); });
  expect_says(text, "cuda:0: out of memory: asked for 12800 bytes, 7200 of 20000 are free");
  emulated::drain();
  emulated::card().bytes = 10000;
  expect_says(io_error([&] { open_gpu_rows(head.k, 0, kScratch); }), "out of memory");
}

}  // namespace
}  // namespace kvbench
