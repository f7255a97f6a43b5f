// One matrix in the memory of a device, and what kvbench cluster asks of its rows there. Centres,
// clusters and norms are the CPU's to the bit, and so are the means; the covariance is summed in
// another fixed order and agrees to rounding.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/delta_cover.hpp"
#include "attention/kcenter.hpp"
#include "core/types.hpp"

namespace kvbench {

/// First and second moments of rows.
struct RowMoments {
  std::vector<double> mean;        ///< [d], added in the order of the rows
  std::vector<double> covariance;  ///< [d, d] over n rows; entries right of the diagonal are 0
};

/// A matrix [n, d] on a device, n >= 1. Thread-safe: tasks on one matrix run side by side.
/// Errors: IoError where the device fails or its memory does not suffice.
class DeviceRows {
 public:
  virtual ~DeviceRows() = default;

  /// attention/kcenter.hpp over all rows, the first centre row 0.
  virtual KCenter k_center(Index k) const = 0;
  /// attention/delta_cover.hpp over all rows in their order.
  virtual Cover delta_cover(double delta, Index max_clusters) const = 0;
  /// Euclidean norm of each row, channels added in their order.
  virtual std::vector<double> norms() const = 0;
  virtual RowMoments moments() const = 0;
};

/// Device memory that a matrix takes, and that each task on it takes beside scratch.
std::uint64_t device_rows_bytes(Index n, Index d);
std::uint64_t device_rows_task_bytes(Index n, Index d);

/// The one array of scratch of a task is never smaller.
std::uint64_t device_rows_least_scratch(Index d);

/// Uploads the rows; they are not read afterwards. Arrays of scratch keep to `scratch_bytes` each
/// where that is at least the least. Throws IoError where memory does not suffice, or where this
/// build has no CUDA.
std::unique_ptr<DeviceRows> open_device_rows(MatrixView rows, int ordinal,
                                             std::size_t scratch_bytes);

}  // namespace kvbench
