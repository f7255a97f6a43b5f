// What finished jobs leave for later, where it is not rows: a file of records, each with a number,
// that survives a kill between any two bytes. Records are read back one at a time, so memory does
// not grow with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/output_guard.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Journals of any identity.
FileKind journal_kind();

class Journal {
 public:
  /// Opens PATH for one writer. With `resume` what is there is kept, up to the first record that is
  /// not whole; else it starts anew. `identity` says what the records belong to (a plan's hash): a
  /// journal of another identity starts anew as well, since nothing in it can be used.
  /// Throws IoError.
  Journal(std::filesystem::path path, std::string_view identity, bool resume);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Appends a record, whole or not at all. One of the same number replaces an earlier one.
  /// Thread-safe. Throws IoError.
  void append(Index number, std::span<const std::byte> record);

  bool has(Index number) const;
  bool empty() const;
  /// A record that is there. Thread-safe. Throws IoError where its bytes are not those written.
  std::vector<std::byte> read(Index number) const;

  /// Drops all records and gives their room back. Throws IoError.
  void clear();
  /// Closes and deletes the file; nothing may follow.
  void remove();

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Place {
    std::uint64_t offset = 0;  // of the record's bytes
    std::uint64_t size = 0;
    std::uint32_t checksum = 0;
  };
  void start_anew(std::string_view identity);
  bool recover(std::string_view identity);
  void cut(std::uint64_t size);

  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t begin_ = 0;  // of the first record
  std::uint64_t end_ = 0;    // of the last
  std::unordered_map<Index, Place> places_;
  mutable std::mutex mutex_;
};

}  // namespace kvbench
