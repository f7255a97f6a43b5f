// A file of numbered binary records, which finished jobs leave for later steps. It survives a kill
// after any byte. Records are read one at a time.
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

/// Journals, whatever their identity.
FileKind journal_kind();

class Journal {
 public:
  /// Opens PATH for one writer. With `resume` existing records are kept up to the first torn one;
  /// otherwise, or if the journal has another `identity` (a plan's hash), it is emptied. Throws
  /// IoError.
  Journal(std::filesystem::path path, std::string_view identity, bool resume);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Appends a whole record or nothing. It replaces an earlier record of this number. Thread-safe.
  /// Throws IoError.
  void append(Index number, std::span<const std::byte> record);

  bool has(Index number) const;
  bool empty() const;
  /// An existing record. Thread-safe. Throws IoError if its bytes were changed.
  std::vector<std::byte> read(Index number) const;

  /// Removes all records from the file. Throws IoError.
  void clear();
  /// Closes and deletes the file. No call may follow.
  void remove();

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Location {
    std::uint64_t offset = 0;  // of the record's bytes
    std::uint64_t size = 0;
    std::uint32_t checksum = 0;
  };
  void reset(std::string_view identity);
  bool recover(std::string_view identity);
  void cut(std::uint64_t size);

  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t begin_ = 0;  // of the first record
  std::uint64_t end_ = 0;    // of the last
  std::unordered_map<Index, Location> locations_;
  mutable std::mutex mutex_;
};

}  // namespace kvbench
