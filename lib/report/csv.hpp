// Writes tables: CsvWriter appends rows to one file, which it locks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>

#include "core/file_lock.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "report/csv_text.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// The kind of a table with these columns, of any version.
FileKind table_kind(std::string name, const Fields& header);

/// Appends rows to one new CSV file, which it locks. Thread-safe.
class CsvWriter {
 public:
  /// Writes the header. Throws InputError (lock held, PATH exists and is not empty or is not a
  /// regular file) or IoError.
  CsvWriter(const std::filesystem::path& path, Fields header);
  ~CsvWriter();
  CsvWriter(const CsvWriter&) = delete;
  CsvWriter& operator=(const CsvWriter&) = delete;

  /// Appends all rows with one write, or none: on failure the file is cut back. Throws InputError
  /// for a row of another width than the header, IoError.
  void append(std::span<const Fields> rows);

  /// Flushes appended rows to the disk. Throws IoError.
  void sync();

  const std::filesystem::path& path() const { return path_; }

 private:
  void open_file();
  void expect_own_name() const;

  std::filesystem::path path_;  // links resolved: two names of one file share the lock
  Fields header_;
  FileLock lock_;
  int fd_ = -1;
  std::mutex mutex_;
};

}  // namespace kvbench
