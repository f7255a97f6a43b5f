// How a file gets its name: written beside its target, forced to the disk, renamed. A reader, and
// whoever comes after a kill or a power cut, sees the old file or the whole new one.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench {

/// The path with symbolic links resolved, as far as it leads: two names of one file meet at one
/// lock, and a rename replaces the file and not the link.
std::filesystem::path resolved_path(const std::filesystem::path& path);

/// Decides for these paths, and for what they lead to, what resolved_path says from now on, so that
/// a link that somebody puts there later is not followed. Takes the place of an earlier call's.
/// Thread-safe.
void fix_resolved_paths(const std::vector<std::filesystem::path>& paths);

/// PATH.tmp, where PATH is written until it is whole.
std::filesystem::path partial_path(const std::filesystem::path& path);

/// Writes all bytes. False, with errno set, on the first failure.
bool write_all(int fd, std::string_view bytes);

/// Writes a message to a person. Where that fails (closed, full, a pipe that nobody reads any more)
/// nothing happens: the run is more than the message.
void write_if_read(int fd, std::string_view text);

/// Waits for the write_all that run, and lets none begin again: for a process that ends while other
/// threads work.
void hold_writes();

/// Throws IoError "PATH: cannot ACTION: what errno value `error` means".
[[noreturn]] void throw_io(std::string_view action, const std::filesystem::path& path, int error);

/// Forces the whole file partial_path(path), which its writer has closed, to the disk and gives
/// it the name `path`. Throws IoError; the unfinished file is left then.
void publish_file(const std::filesystem::path& path);

/// Renames a file, for good. Throws IoError, also where a device, a folder or a link has the new
/// name.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// A text that stands in PATH.tmp until it is published, so that several files can be written
/// before the first of them gets its name. It may be put together in parts: memory holds one.
class StagedFile {
 public:
  /// Makes PATH.tmp anew, never through a link that has this name. Throws IoError.
  explicit StagedFile(const std::filesystem::path& path);
  /// The same with all of its text, and closed.
  StagedFile(const std::filesystem::path& path, std::string_view text);
  /// Removes PATH.tmp where it was not published.
  ~StagedFile();
  StagedFile(StagedFile&& other) noexcept;
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  /// PATH.tmp, with links resolved.
  std::filesystem::path partial() const;
  /// Puts text behind what is there. Throws IoError.
  void put(std::string_view text);
  /// Forces all that was put to the disk; nothing may follow. Throws IoError.
  void close();
  /// Gives the file, which must be closed, its name. Throws IoError.
  void publish();

 private:
  void flush();

  std::filesystem::path path_;  // empty: published, or moved from
  int fd_ = -1;                 // -1: closed
  std::string waiting_;         // put, and not yet written
};

/// Replaces `path` by `text`. Throws IoError.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace kvbench
