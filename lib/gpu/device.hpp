// Which device a run uses, and heads and matrices on it. All of CUDA is behind this header; a build
// without CUDA has it too and refuses every device by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attention/backend.hpp"
#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

/// What `--device` names.
struct DeviceChoice {
  bool cuda = false;
  int ordinal = 0;
  std::string text() const;  ///< "cpu" or "cuda:i", as rows say it
};

/// `cpu`, `cuda` (the first), `cuda:i`, or `auto` (cuda:0 where it can be used, else cpu). Throws
/// InputError for other texts; IoError where the device is absent or too old for this build, or
/// this build has no CUDA.
DeviceChoice choose_device(const std::string& text);

/// A CUDA device, for the manifest and for planning.
struct DeviceInfo {
  std::string model;
  std::string driver;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};
/// Throws IoError where there is none of that number.
DeviceInfo device_info(int ordinal);

/// Device memory that a head of these sizes takes, and that each job on it takes beside scratch
/// (unit keys in float64, two rows of logits per query head, and some numbers per token).
std::uint64_t device_head_bytes(Index n, Index d, Index dv, Index group, Index nq);
std::uint64_t device_job_bytes(Index n, Index d, Index group);

/// How many arrays of scratch one job has at a time. Each takes up to scratch_bytes.
inline constexpr Index kScratchArrays = 8;

/// Queries of a stream's steps attend together until what they attend to takes this many bytes:
/// enough that a launch fills a device.
inline constexpr Index kGpuBatchBytes = Index{1} << 26;

/// Uploads a head, which must outlive the backend. Its jobs' arrays of scratch keep to
/// `scratch_bytes` each. Throws IoError where memory does not suffice, or where this build has no
/// CUDA.
std::unique_ptr<Backend> open_gpu(const KvHead& head, int ordinal, std::size_t scratch_bytes);

/// Device memory that a matrix takes, and that each task on it takes beside scratch.
std::uint64_t device_rows_bytes(Index n, Index d);
std::uint64_t device_rows_task_bytes(Index n, Index d);

/// The one array of scratch of a task is never smaller.
std::uint64_t device_rows_min_scratch(Index d);

/// Uploads rows, which are not read afterwards. Arrays of scratch keep to `scratch_bytes` each
/// where that is device_rows_min_scratch or more. Errors: as open_gpu.
std::unique_ptr<RowSet> open_gpu_rows(MatrixView rows, int ordinal, std::size_t scratch_bytes);

}  // namespace kvbench
