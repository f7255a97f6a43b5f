// One KV head in a device's memory.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"
#include "gpu/cuda.cuh"

namespace kvbench::gpu {

/// Keys, values and queries of the trace, float32, row-major. Read-only, shared by threads. The
/// host's head must outlive it.
struct DeviceHead {
  DeviceHead(Device on, const KvHead& from)
      : device(on), host(&from), k(upload(from.k)), v(upload(from.v)) {
    std::vector<const float*> begins;
    for (const Matrix& queries : from.q) {
      q.push_back(upload(queries));
      begins.push_back(q.back().data());
    }
    q_rows = {device, std::span<const float* const>(begins)};
    sink_logit = {device, std::span<const float>(from.sink_logit)};
    device.wait();  // other threads' streams read the uploads
  }

  Device device;
  const KvHead* host;
  Array<float> k;               ///< [n, d]
  Array<float> v;               ///< [n, dv]
  std::vector<Array<float>> q;  ///< group x [nq, d]
  Array<const float*> q_rows;   ///< [group]: first element of each q
  Array<float> sink_logit;      ///< [group], or empty

  const float* sink_logits() const {
    return host->sink_logit.empty() ? nullptr : sink_logit.data();
  }

 private:
  Array<float> upload(const Matrix& m) const {
    return {device,
            std::span<const float>(m.data(), static_cast<std::size_t>(m.rows() * m.cols()))};
  }
};

}  // namespace kvbench::gpu
