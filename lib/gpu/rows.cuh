// Rows of a matrix in device memory: k-center, online clusters, norms and moments.
#pragma once

#include <span>
#include <vector>

#include "attention/row_set.hpp"
#include "gpu/cuda.cuh"

namespace kvbench::gpu {

/// Rows of a matrix [., d] in device memory; place i is row numbers[i].
struct Points {
  const float* data;
  const Index* numbers;  ///< [m]; null: place i is row i
  Index m;
  Index d;

  /// The last row is repeated beyond the end.
  __device__ const float* row(Index place) const {
    place = place < m ? place : m - 1;
    return data + (numbers == nullptr ? place : numbers[place]) * d;
  }
};

/// Memory of a call beside the rows: device_rows_task_bytes of gpu/device.hpp.
class DeviceRowSet final : public RowSet {
 public:
  /// Rows `rows` of `resident` [., cols], device memory that must outlive the set.
  DeviceRowSet(const Device& device, const float* resident, Index cols,
               std::span<const Index> rows);
  /// Uploads all rows of `rows`.
  DeviceRowSet(const Device& device, MatrixView rows);
  DeviceRowSet(const DeviceRowSet&) = delete;
  DeviceRowSet& operator=(const DeviceRowSet&) = delete;

  Index count() const override { return points_.m; }
  /// One launch per centre.
  KCenter k_center(Index k, Index first) const override;
  /// Two launches per 64 rows.
  Clusters online_clusters(double delta, Index max_clusters) const override;
  std::vector<double> norms() const override;
  /// The covariance is summed by chunks of 512 rows, in order, for any scratch.
  RowMoments moments() const override;

 private:
  Device device_;
  Array<float> matrix_;
  Array<Index> numbers_;
  Points points_;
};

}  // namespace kvbench::gpu
