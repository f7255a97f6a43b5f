// Writes the tables of a run: CsvWriter appends rows to one file, which it locks. The columns of
// report/row_crc.hpp are added here and removed by TableReader; nothing else sees them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "report/csv_text.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// Exclusive advisory lock PATH.lock, held for the object's life. The file is removed at the end; a
/// killed holder leaves it unlocked, so nothing has to be cleaned up by hand.
class FileLock {
 public:
  /// Throws InputError "another run is writing PATH" when it is held, and where PATH.lock is a file
  /// of somebody else's, which is not empty; IoError when it cannot be made.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::filesystem::path lock_path_;
  int fd_ = -1;
};

/// The lock of a file that is to be read whole: a run that writes it is refused as by FileLock.
/// Null where no lock can be made: in such a folder nobody writes.
std::unique_ptr<FileLock> lock_where_possible(const std::filesystem::path& path);

/// The kind of a file that CsvWriter writes with these columns.
FileKind table_kind(std::string name, const Fields& header);

/// Appends rows to one CSV file, which it alone may write while it lives. Thread-safe. The columns
/// of report/row_crc.hpp come to those of `header`.
class CsvWriter {
 public:
  enum class Mode {
    create,     ///< InputError when PATH exists and is not empty
    overwrite,  ///< starts anew
    resume,     ///< keeps the whole rows that are there; starts anew when PATH is absent or empty
    staged,     ///< leaves PATH as it is; stage() is all that may be called
  };

  /// Gets a row that the file held when it was opened to resume; in file order.
  using ExistingRow = std::function<void(const TableReader&)>;

  /// Takes the lock, then opens. Under `resume` a torn last line (of a killed run) is cut off and
  /// the header must equal `header`. `run`: what the column `run_id` says, also of the rows
  /// that are there; those of the run `earlier` are let pass, and must be replaced before any row
  /// is appended. Throws InputError (lock held, header differs, malformed file, a row that was
  /// changed or is of another run, not a regular file) or IoError.
  CsvWriter(const std::filesystem::path& path, Fields header, Mode mode, std::string run,
            const ExistingRow& existing = {}, const std::string& earlier = {});
  ~CsvWriter();
  CsvWriter(const CsvWriter&) = delete;
  CsvWriter& operator=(const CsvWriter&) = delete;

  /// Appends all rows with one write, whole or not at all: when the disk is full the file is cut
  /// back to its length before. Rows must be as wide as the header (InputError). Throws IoError.
  void append(std::span<const Fields> rows);

  /// The table without rows, in PATH.tmp: lines of checked_line() are to be put behind. To be
  /// published while the writer, which holds the lock, lives. Throws IoError.
  StagedFile stage() const;

  /// Replaces the table by what was staged; append() goes on behind it. Throws IoError.
  void replace(StagedFile file);

  /// Forces what was appended to the disk. Throws IoError.
  void sync();

  const std::filesystem::path& path() const { return path_; }
  const std::string& run() const { return run_; }
  /// A line that the file held when it was opened to resume, as a line of this run.
  std::string line_of_this_run(std::string_view line) const;
  /// Whether there are rows of the earlier run.
  bool holds_earlier() const { return holds_earlier_; }
  /// Whether it must be replaced before it is finished: rows of the earlier run, or bytes that no
  /// run writes (blank lines, a BOM, CR), which its checksum would sign.
  bool needs_rewrite() const { return holds_earlier_ || has_strays_; }

 private:
  void open_file();
  void expect_own_name() const;
  void recover(const ExistingRow& existing, const std::string& earlier);

  std::filesystem::path path_;  // symbolic links resolved: two names of one file share the lock
  Fields header_;
  std::size_t checks_at_;  // own cells of a row before run_id and row_crc
  std::string run_;
  FileLock lock_;
  int fd_ = -1;
  bool holds_earlier_ = false;
  bool has_strays_ = false;
  std::mutex mutex_;
};

}  // namespace kvbench
