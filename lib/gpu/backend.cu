#include <cstdlib>
#include <stdexcept>

#include "gpu/device.hpp"
#include "gpu/operations.cuh"
#include "gpu/rows.cuh"

namespace kvbench {
namespace {

__global__ void any_kernel() {}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Jobs allocate and free often: the pool keeps freed memory until the program ends.
void keep_pool(int ordinal) {
  const gpu::Device device(ordinal, 0);
  if (!device.has_pool()) {
    return;
  }
  std::uint64_t all = ~std::uint64_t{0};
  gpu::check(cudaMemPoolSetAttribute(device.pool(), cudaMemPoolAttrReleaseThreshold, &all),
             "setting up the memory pool", ordinal);
}

class GpuBackend final : public Backend {
 public:
  GpuBackend(const gpu::Device& device, const KvHead& head) : head_(device, head) {}

  ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                                 int /*threads*/) const override {
    return gpu::exact_attention(mine(head), g, positions);
  }
  MatrixD exact_probabilities(const KvHead& head, Index g,
                              std::span<const Index> positions) const override {
    return gpu::exact_probabilities(mine(head), g, positions);
  }
  std::vector<std::vector<double>> attention_sums(const KvHead& head,
                                                  Range queries) const override {
    return gpu::attention_sums(mine(head), queries);
  }
  void add_rows_to(const KvHead& head, std::span<SoftmaxSums> sums,
                   std::span<const std::vector<WeightedRows>> sets) const override {
    gpu::add_rows_to(mine(head), sums, sets);
  }
  Index batch_bytes() const override { return kGpuBatchBytes; }
  std::unique_ptr<RowSet> rows(const KvHead& head, HeadRows of,
                               std::span<const Index> rows) const override {
    const gpu::DeviceHead& own = mine(head);
    return of == HeadRows::keys
               ? std::make_unique<gpu::DeviceRowSet>(own.device, own.k.data(), head.d(), rows)
               : std::make_unique<gpu::DeviceRowSet>(own.device, own.v.data(), head.dv(), rows);
  }
  WalkCounts balance_blocks(const KvHead& head, const BalanceBlocks& blocks,
                            std::span<std::int8_t> signs,
                            std::span<double> probability) const override {
    return gpu::balance_blocks(mine(head), blocks, signs, probability);
  }
  std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                  std::span<const Index> from) const override {
    return gpu::nearest_keys(mine(head), to, from);
  }
  std::unique_ptr<FacilityGains> facility_location(const KvHead& head,
                                                   std::span<const Index> ground, Similarity kind,
                                                   Index /*matrix_bytes*/) const override {
    return gpu::facility_location(mine(head), ground, kind);
  }
  std::unique_ptr<EvictionStream> evictions(const KvHead& head,
                                            const EvictionRules& rules) const override {
    return gpu::evictions(mine(head), rules);
  }
  std::unique_ptr<ReviveStream> revive(const KvHead& head, const ReviveTask& task) const override {
    return gpu::revive(mine(head), task);
  }
  std::unique_ptr<RetentionStream> retention(const KvHead& head,
                                             const RetentionRules& rules) const override {
    return gpu::retention(mine(head), rules);
  }
  std::unique_ptr<ClusterStream> clusters(const KvHead& head, HeadRows of,
                                          std::span<const Index> stream,
                                          double delta) const override {
    return cluster_stream(rows(head, of, stream)->online_clusters(delta));
  }

 private:
  const gpu::DeviceHead& mine(const KvHead& head) const {
    if (&head != head_.host) {
      throw std::logic_error("GPU backend: called with a head other than its own");
    }
    return head_;
  }

  gpu::DeviceHead head_;
};

}  // namespace

DeviceInfo device_info(int ordinal) {
  // Before the first use of the device. Jobs wait on their own streams: use as many hardware queues
  // as possible, and let waiting threads yield their core.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    throw IoError("--device cuda:" + std::to_string(ordinal) + ": no device can be used here (" +
                  cudaGetErrorString(code) + "), expected --device cpu");
  }
  gpu::check(code, "counting devices", ordinal);
  if (ordinal >= count) {
    throw IoError("--device cuda:" + std::to_string(ordinal) + ": absent, expected one of the " +
                  std::to_string(count) + " devices here, counted from 0");
  }
  cudaDeviceProp properties;
  gpu::check(cudaGetDeviceProperties(&properties, ordinal), "reading properties", ordinal);
  gpu::check(cudaSetDevice(ordinal), "selecting the device", ordinal);
  if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) {
    cudaGetLastError();  // an older driver keeps the waiting mode of a device in use
  }
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) {
    cudaGetLastError();
    const std::string capability =
        std::to_string(properties.major) + std::to_string(properties.minor);
    throw IoError("--device cuda:" + std::to_string(ordinal) + ": this is " + properties.name +
                  ", for which this program holds no kernels, expected --device cpu, or a build "
                  "with CMAKE_CUDA_ARCHITECTURES=" +
                  capability);
  }
  int driver = 0;
  gpu::check(cudaDriverGetVersion(&driver), "getting the driver version", ordinal);
  DeviceInfo out;
  out.model = properties.name;
  out.driver = version_text(driver);
  gpu::Device(ordinal, 0).trim_pool();
  std::size_t free = 0;
  std::size_t total = 0;
  gpu::check(cudaMemGetInfo(&free, &total), "getting free memory", ordinal);
  out.free_bytes = free;
  out.total_bytes = total;
  return out;
}

std::unique_ptr<Backend> open_gpu(const KvHead& head, int ordinal, std::size_t scratch_bytes) {
  keep_pool(ordinal);
  return std::make_unique<GpuBackend>(gpu::Device(ordinal, scratch_bytes), head);
}

std::unique_ptr<RowSet> open_gpu_rows(MatrixView rows, int ordinal, std::size_t scratch_bytes) {
  keep_pool(ordinal);
  return std::make_unique<gpu::DeviceRowSet>(gpu::Device(ordinal, scratch_bytes), rows);
}

}  // namespace kvbench
