// A file of numbered binary records, which finished jobs leave for later steps. It survives a kill
// after any byte. Records are read one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/descriptor.hpp"
#include "core/output_guard.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Journals, whatever their identity.
FileKind journal_kind();

class Journal {
 public:
  /// What to do with a record whose checksum is wrong and that is not the torn end of the file.
  enum class Damage {
    refuse,  ///< InputError with the record's number in the file
    skip,    ///< it is no record; those after it are
  };

  /// Opens PATH for one writer. With `resume` existing records are kept, except a torn last one;
  /// otherwise, or if the journal has another `identity`, it is emptied. Throws IoError, or
  /// InputError of Damage::refuse.
  Journal(std::filesystem::path path, std::string_view identity, bool resume, Damage damage);
  /// Opens an existing journal for reading; a writer may append meanwhile. Throws InputError if
  /// PATH is no journal, and as above.
  Journal(std::filesystem::path path, Damage damage);

  /// Appends a whole record or nothing. It replaces an earlier record of this number. Thread-safe.
  /// Throws IoError.
  void append(Index number, std::span<const std::byte> record);

  bool has(Index number) const;
  /// Numbers of the records, ascending.
  std::vector<Index> numbers() const;
  /// An existing record. Thread-safe. Throws IoError if its bytes were changed.
  std::vector<std::byte> read(Index number) const;

  /// Whether an existing file is a journal with a whole record.
  static bool has_records(const std::filesystem::path& path);

  /// Removes all records from the file. Throws IoError.
  void clear();
  /// Gives the file another name, replacing a file of it. Throws IoError.
  void rename(const std::filesystem::path& path);
  /// Closes and deletes the file. No call may follow.
  void remove();

  const std::filesystem::path& path() const { return path_; }
  const std::string& identity() const { return identity_; }

 private:
  struct Location {
    Index number = 0;
    std::uint64_t offset = 0;  // of the record's bytes
  };
  bool read_identity();
  void list_records(Damage damage);
  void cut(std::uint64_t size);
  const Location* find(Index number) const;

  std::filesystem::path path_;
  std::string identity_;
  Descriptor fd_;
  std::uint64_t begin_ = 0;  // of the first record
  std::uint64_t end_ = 0;    // of the last
  // Sorted by number, each once, when something is looked up: runs may have millions of records.
  mutable std::deque<Location> locations_;
  mutable bool sorted_ = true;
  mutable std::mutex mutex_;
};

}  // namespace kvbench
