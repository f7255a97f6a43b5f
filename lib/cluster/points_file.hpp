// The points of many heads in one HDF5 file, for those who prefer it to a table of text.
//
//   /                                     attributes format = "kvbench-points", version = 1
//   /<trace>/<prompt>/<layer>/<kv_head>/<what>
//       token      int64   [m]            ascending
//       is_center  uint8   [m]            0 or 1
//       kept_by    string  [m]            variable length, UTF-8; labels separated by `;`
//       x          float32 [m, c]         coordinates
#pragma once

#include <memory>
#include <string>

#include "cluster/study.hpp"

namespace kvbench {

/// Writes PATH.tmp, which close() renames to PATH. Errors: IoError. Calls into HDF5: see
/// trace/reader.hpp for what that means to threads.
class PointsFile {
 public:
  explicit PointsFile(const std::string& path);
  /// Without close(), removes PATH.tmp and leaves PATH as it was.
  ~PointsFile();
  PointsFile(const PointsFile&) = delete;
  PointsFile& operator=(const PointsFile&) = delete;

  /// `group`: trace/prompt/layer/kv_head/what, once each; at least one row and one column.
  void add(const std::string& group, const Points& points);
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
