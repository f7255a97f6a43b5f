// The CUDA build of attention/device.hpp: kernels and drivers of this room on a CudaMachine.
#include <cstdlib>

#include "attention/device_on.hpp"
#include "core/cuda.cuh"

namespace kvbench {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

DeviceInfo device_info(int ordinal) {
  // Both settings count only if made before the device is first used. Jobs wait on streams of their
  // own: as many of these as there can be run apart, and a thread that waits leaves its core.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    throw IoError("--device cuda:" + std::to_string(ordinal) + ": no device can be used here (" +
                  cudaGetErrorString(code) + "), expected --device cpu");
  }
  check_cuda(code, "counting devices", ordinal);
  if (ordinal >= count) {
    throw IoError("--device cuda:" + std::to_string(ordinal) + ": absent, expected one of the " +
                  std::to_string(count) + " devices here, counted from 0");
  }
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "reading properties", ordinal);
  check_cuda(cudaSetDevice(ordinal), "selecting the device", ordinal);
  if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) {
    cudaGetLastError();  // a program that used the device before keeps its own way of waiting
  }
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, block_kernel<Farthest>) != cudaSuccess) {
    cudaGetLastError();
    const std::string capability =
        std::to_string(properties.major) + std::to_string(properties.minor);
    throw IoError("--device cuda:" + std::to_string(ordinal) + ": this is " + properties.name +
                  ", for which this program holds no kernels, expected --device cpu, or a build "
                  "with CMAKE_CUDA_ARCHITECTURES=" +
                  capability);
  }
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version", ordinal);
  DeviceInfo out;
  out.model = properties.name;
  out.driver = version_text(driver);
  std::size_t free = 0;
  std::size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory", ordinal);
  out.free_bytes = free;
  out.total_bytes = total;
  return out;
}

std::unique_ptr<DeviceHead> open_device_head(const KvHead& head, int ordinal,
                                             std::size_t scratch_bytes, GpuMath math) {
  keep_pool(ordinal);
  CudaMachine machine(ordinal, scratch_bytes);
  auto out = std::make_unique<DeviceHeadOn<CudaMachine>>(machine, head, math);
  machine.wait();  // jobs of other threads read what this thread's stream uploads
  return out;
}

}  // namespace kvbench
