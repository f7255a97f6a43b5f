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

#include "core/file_lock.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "report/csv_text.hpp"
#include "report/table_reader.hpp"

namespace kvbench {

/// The kind of a file that CsvWriter writes with these columns, of any version.
FileKind table_kind(std::string name, const Fields& header);

/// Appends rows to one CSV file, which it locks. Thread-safe.
class CsvWriter {
 public:
  enum class Mode {
    create,     ///< InputError when PATH exists and is not empty
    overwrite,  ///< replaces PATH
    resume,     ///< keeps the whole rows of PATH, which may be absent or empty
    staged,     ///< does not touch PATH; only stage() may be called
  };

  /// Called under `resume` for each existing row, in file order.
  using ExistingRow = std::function<void(const TableReader&)>;

  /// Takes `lock`, that of PATH, or locks; then opens. Under `resume` the torn last line of a
  /// killed run is cut off, the header must equal `header`, and existing rows must be of `run` (the
  /// column `run_id`) or of the run `earlier`. Rows of `earlier` must be replaced before any row is
  /// appended. Throws InputError (lock held, header differs, malformed file, a row that was changed
  /// or is of another run, not a regular file) or IoError.
  CsvWriter(const std::filesystem::path& path, Fields header, Mode mode, std::string run,
            const ExistingRow& existing = {}, const std::string& earlier = {},
            std::unique_ptr<FileLock> lock = nullptr);
  ~CsvWriter();
  CsvWriter(const CsvWriter&) = delete;
  CsvWriter& operator=(const CsvWriter&) = delete;

  /// Appends all rows with one write, or none: on failure the file is cut back. Throws InputError
  /// for a row of another width than the header, IoError.
  void append(std::span<const Fields> rows);

  /// The table without rows, in PATH.tmp, for lines of checked_line(). Must be published while the
  /// writer holds the lock. Throws IoError.
  StagedFile stage() const;

  /// Replaces the table by the staged file; append() then appends to that. Throws IoError.
  void replace(StagedFile file);

  /// Flushes appended rows to the disk. Throws IoError.
  void sync();

  const std::filesystem::path& path() const { return path_; }
  const std::string& run() const { return run_; }
  /// An existing line as a line of this run.
  std::string line_of_this_run(std::string_view line) const;
  /// Whether there are rows of the run `earlier`.
  bool holds_earlier() const { return holds_earlier_; }
  /// Whether the file must be replaced before it is finished: it has rows of `earlier`, or bytes
  /// that no run writes (blank lines, a BOM, CR).
  bool needs_rewrite() const { return holds_earlier_ || has_strays_; }

 private:
  void open_file();
  void expect_own_name() const;
  void recover(const ExistingRow& existing, const std::string& earlier);

  std::filesystem::path path_;  // links resolved: two names of one file share the lock
  Fields header_;
  std::size_t checks_at_;  // own cells before run_id and row_crc
  std::string run_;
  std::unique_ptr<FileLock> lock_;
  int fd_ = -1;
  bool holds_earlier_ = false;
  bool has_strays_ = false;
  std::mutex mutex_;
};

}  // namespace kvbench
