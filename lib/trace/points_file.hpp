// The points of many heads in one HDF5 file.
//
//   /                                     attributes format = "kvbench-points", version = 1
//   /<trace>/<prompt>/<layer>/<kv_head>/<what>
//       token      int64   [m]            ascending
//       is_center  uint8   [m]            0 or 1
//       kept_by    string  [m]            variable length, UTF-8; labels separated by `;`
//       x          float32 [m, c]         coordinates
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

inline constexpr std::string_view kPointsFormat = "kvbench-points";  ///< root attribute `format`

/// Writes PATH.tmp, which close() renames to PATH. Errors: IoError. Threads: as TraceWriter.
class PointsFile {
 public:
  explicit PointsFile(const std::string& path);
  /// Without close(), removes PATH.tmp and leaves PATH as it was.
  ~PointsFile();
  PointsFile(const PointsFile&) = delete;
  PointsFile& operator=(const PointsFile&) = delete;

  /// `group`: trace/prompt/layer/kv_head/what, once each. All are [m] or [m, c], m and c at
  /// least 1.
  void add(const std::string& group, std::span<const Index> tokens,
           const std::vector<bool>& is_center, std::span<const std::string> kept_by, MatrixView x);
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
