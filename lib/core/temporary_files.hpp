// Files and folders to remove when the process is interrupted: partial files, locks, scratch
// folders. After kill -9 they stay, and the next run of the same command replaces them.
#pragma once

#include <filesystem>
#include <memory>

namespace kvbench {

/// A file or folder that its owner removes, with its contents, unless keep() is called. Errors are
/// ignored. Thread-safe.
class Temporary {
 public:
  Temporary() = default;  ///< none
  explicit Temporary(std::filesystem::path path);

  const std::filesystem::path& path() const { return *path_; }
  /// Forgets it: the file stays, or has another name.
  void keep();

 private:
  struct Remove {
    void operator()(const std::filesystem::path* path) const;
  };
  std::unique_ptr<const std::filesystem::path, Remove> path_;
};

/// Removes all of them, as the process ends.
void remove_temporaries();

}  // namespace kvbench
