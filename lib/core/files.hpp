// Atomic files: written as PATH.tmp, synced, renamed, so that a reader, also after a kill or a
// power cut, sees the old file or the whole new one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/descriptor.hpp"
#include "core/temporary_files.hpp"

namespace kvbench {

/// Resolves symbolic links, so that two names of a file share one lock and a rename replaces the
/// file, not the link.
std::filesystem::path resolved_path(const std::filesystem::path& path);

/// Freezes resolved_path for these paths and their targets: links made later are not followed.
/// Replaces earlier ones. Thread-safe.
void fix_resolved_paths(const std::vector<std::filesystem::path>& paths);

std::filesystem::path partial_path(const std::filesystem::path& path);

/// Returns false, with errno set, on the first failure.
bool write_all(int fd, std::string_view bytes);

/// Writes a message. Errors (closed, full, broken pipe) are ignored: the run goes on without it.
void write_message(int fd, std::string_view text);

/// Waits for running write_all calls and blocks new ones, for a process that ends while other
/// threads work.
void block_writes();

/// Returns a file's bytes, at most `most` and one more: then the file is larger. Nothing if it
/// cannot be read. The path may be a pipe or an endless device.
std::optional<std::string> read_at_most(const std::filesystem::path& path, std::size_t most);

/// Throws IoError "PATH: cannot ACTION: TEXT OF errno".
[[noreturn]] void throw_io(std::string_view action, const std::filesystem::path& path, int error);

/// Syncs the closed file `partial` and renames it to `path`. Throws IoError.
void publish_file(Temporary& partial, const std::filesystem::path& path);

/// Throws IoError, also if `to` is a device, a folder or a link.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// A text in PATH.tmp until published, so that several files can be complete before the first is
/// renamed. Memory holds one part at a time. The destructor removes PATH.tmp if not published.
class StagedFile {
 public:
  /// Creates PATH.tmp, never through a link. Throws IoError.
  explicit StagedFile(const std::filesystem::path& path);
  /// The same with its whole text, closed.
  StagedFile(const std::filesystem::path& path, std::string_view text);
  const std::filesystem::path& partial() const { return partial_.path(); }
  /// Appends text. Throws IoError, as flush() does.
  void put(std::string_view text);
  /// Writes what waits in memory. Throws IoError; then the file ends as before.
  void flush();
  /// Bytes of all that was put.
  off_t size() const { return size_ + static_cast<off_t>(waiting_.size()); }
  /// Drops what was put beyond `size` bytes. Errors are ignored.
  void cut(off_t size);
  /// Syncs the file; no text may follow. Throws IoError.
  void close();
  /// Renames the closed file to PATH. Throws IoError.
  void publish();

 private:
  std::filesystem::path path_;
  Descriptor fd_;
  Temporary partial_;
  std::string waiting_;  // not yet written
  off_t size_ = 0;       // written
};

/// Replaces the contents of `path`. Throws IoError.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace kvbench
