// All CUDA code is behind this header. Builds without CUDA have it too and reject every CUDA
// device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attention/backend.hpp"
#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

/// A parsed `--device`.
struct DeviceChoice {
  bool cuda = false;
  int ordinal = 0;
  std::string text() const;  ///< "cpu" or "cuda:i", as in rows
};

/// Parses `cpu`, `cuda` (the first), `cuda:i`, or `auto` (cuda:0 if usable, otherwise cpu). Throws
/// InputError for other texts; IoError if the device is absent or not supported by this build.
DeviceChoice choose_device(const std::string& text);

/// A CUDA device, for the manifest and for planning.
struct DeviceInfo {
  std::string model;
  std::string driver;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};
/// Throws IoError if it is absent.
DeviceInfo device_info(int ordinal);

/// Device memory of a head, and of each job on it beside scratch (unit keys in float64, two rows of
/// logits per query head, some numbers per token).
std::uint64_t device_head_bytes(Index n, Index d, Index dv, Index group, Index nq);
std::uint64_t device_job_bytes(Index n, Index d, Index group);

/// Of a job at a time, each up to scratch_bytes.
inline constexpr Index kScratchArrays = 8;

/// Queries of a stream's steps are batched up to this many bytes, enough to fill a device per
/// launch.
inline constexpr Index kGpuBatchBytes = Index{1} << 26;

/// Uploads a head, which must outlive the backend. Scratch arrays keep to `scratch_bytes` each,
/// unless one query or one block of a walk needs more.
/// Throws IoError if memory does not suffice or the build has no CUDA.
std::unique_ptr<Backend> open_gpu(const KvHead& head, int ordinal, std::size_t scratch_bytes);

/// Device memory of a matrix, and of each task on it beside scratch.
std::uint64_t device_rows_bytes(Index n, Index d);
std::uint64_t device_rows_task_bytes(Index n, Index d);

/// Least size of a task's one scratch array.
std::uint64_t device_rows_min_scratch(Index d);

/// Uploads rows, which may then be freed. Scratch arrays keep to `scratch_bytes` each if that is at
/// least device_rows_min_scratch. Throws as open_gpu.
std::unique_ptr<RowSet> open_gpu_rows(MatrixView rows, int ordinal, std::size_t scratch_bytes);

}  // namespace kvbench
