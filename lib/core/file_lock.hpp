// Keeps two runs from writing one file.
#pragma once

#include <filesystem>
#include <memory>

#include "core/descriptor.hpp"
#include "core/temporary_files.hpp"

namespace kvbench {

/// Exclusive advisory lock PATH.lock, held and removed by RAII. A killed holder leaves the file
/// unlocked.
class FileLock {
 public:
  /// Throws InputError if it is held or PATH.lock is not empty (another program's); IoError if it
  /// cannot be created.
  explicit FileLock(const std::filesystem::path& path);

 private:
  Descriptor fd_;
  Temporary file_;  // goes first, while the lock is held
};

/// The lock of a file to be read. Throws as FileLock if a run is writing it. Null if no lock can be
/// created, as in a read-only folder.
std::unique_ptr<FileLock> lock_where_possible(const std::filesystem::path& path);

}  // namespace kvbench
