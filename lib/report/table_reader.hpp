// A table row after row: memory does not grow with the rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/sha256.hpp"
#include "core/types.hpp"
#include "report/csv.hpp"

namespace kvbench {

class TableReader {
 public:
  /// What a last row without a line end is: a row, or (of a killed run) none.
  enum class Last { row, torn };

  /// Reads the header; there is none where it is torn. Errors: as of read_table, and InputError for
  /// a row of more than 64 MiB; of next() too.
  explicit TableReader(const std::filesystem::path& path, Last last = Last::row);
  /// Of a text. `source` is for messages.
  TableReader(std::unique_ptr<std::istream> text, std::string source, Last last = Last::row);

  virtual ~TableReader() = default;
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  /// Goes to the next row, whose checksum is right; false where none is left.
  virtual bool next();

  const Fields& header() const { return header_; }  ///< without the columns of checksums
  const std::string& source() const { return source_; }
  bool checked() const { return checks_at_.has_value(); }  ///< as Table::checked
  /// Position of a column. Throws InputError where it is absent.
  std::size_t column(std::string_view name) const;

  const Fields& row() const { return fields_; }
  Index rows() const { return rows_; }               ///< so far
  const std::string& run() const { return run_; }    ///< that wrote the row; empty if not checked
  std::string_view text() const { return record_; }  ///< the row's bytes, line end included
  std::uint64_t begin() const { return offset_ - record_.size(); }  ///< of the row, in the file
  /// Behind the last row, and after the last: what is no row. `rest` is 64 MiB at most.
  std::uint64_t end() const { return offset_; }
  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }
  std::size_t line() const { return line_; }             ///< behind the row, 1-based
  std::size_t row_line() const { return record_line_; }  ///< where the row begins, 1-based

  /// Of all bytes of the table, behind the last row; once.
  std::string sha256() { return hash_.text(); }

 private:
  void check_text() const;
  bool next_record();
  bool find_record();
  bool read_more();
  void parse();
  void bare(std::string& field);
  void quoted(std::string& field);
  void take_line_end();
  void take_row_crc();
  int peek() const;
  bool take(char c);
  [[noreturn]] void fail(std::size_t line, std::string_view got, std::string_view expected) const;

  std::unique_ptr<std::istream> in_;
  std::string source_;
  Last last_;
  Sha256 hash_;

  std::string buffer_;        // what was read and is not yet behind us
  std::size_t at_ = 0;        // of the next record in it
  std::uint64_t offset_ = 0;  // of the next record in the file
  std::string_view record_;   // in buffer_
  std::size_t parsed_ = 0;    // of record_
  std::size_t line_ = 1;
  std::size_t record_line_ = 1;  // where the record begins

  Fields header_;
  std::optional<std::size_t> checks_at_;  // the row's cells before run_id and row_crc
  Fields fields_;
  std::size_t crc_begin_ = 0;  // of row_crc's cell in record_
  std::size_t crc_end_ = 0;
  std::size_t parsed_end_ = 0;  // of the last cell
  std::string run_;
  Index rows_ = 0;
};

/// Lines of a table that was read whole and does not change, again and by their offset: a buffer's
/// worth of memory. In the file's order it is read once.
class TableLines {
 public:
  /// Throws IoError.
  explicit TableLines(const std::filesystem::path& path);
  ~TableLines();
  TableLines(const TableLines&) = delete;
  TableLines& operator=(const TableLines&) = delete;

  /// The line that begins there (TableReader::begin), its end included; until the next call. Throws
  /// IoError.
  std::string_view at(std::uint64_t offset);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;
  std::uint64_t begin_ = 0;  // of the buffer, in the file
};

/// An open regular file. Throws InputError where it is absent or no regular file.
std::unique_ptr<std::istream> open_text(const std::filesystem::path& path);

}  // namespace kvbench
