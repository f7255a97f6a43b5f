// Reads tables: TableReader row after row, parse_table and whole_table whole ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/sha256.hpp"
#include "core/types.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// Reads a table row after row; memory does not grow with the rows. Empty lines are skipped, a
/// leading BOM is dropped, lines may end in "\r\n". Errors are InputError (source, line, got,
/// expected): an empty text, a repeated column name, a row of another width than the header, a
/// quote inside a bare field, text after a closing quote, a quote that never closes, a CR without
/// LF, or a row of more than 64 MiB.
class TableReader {
 public:
  /// Reads the header. Errors: as of open_text and of the format.
  explicit TableReader(const std::filesystem::path& path);
  /// Of a text. `source` is for messages.
  TableReader(std::unique_ptr<std::istream> text, std::string source);

  virtual ~TableReader() = default;
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  /// Reads the next row; false at the end.
  virtual bool next();

  const Fields& header() const { return header_; }
  const std::string& source() const { return source_; }
  /// Position of a column. Errors: as of column_position.
  std::size_t column(std::string_view name) const {
    return column_position(header_, name, source_);
  }

  const Fields& row() const { return fields_; }
  Index rows() const { return rows_; }                   ///< read so far
  std::string_view text() const { return record_; }      ///< the row's bytes, line end included
  std::size_t row_line() const { return record_line_; }  ///< where the row begins, 1-based

  /// Of all bytes of the table, after the last row; once.
  std::string sha256() { return hash_.text(); }

 private:
  void check_text();
  bool next_record();
  bool read_chunk();
  bool read_record();
  void parse();
  std::string_view bare(std::string_view rest, std::string& field) const;
  std::string_view quoted(std::string_view rest, std::string& field);
  [[noreturn]] void fail(std::size_t line, std::string_view got, std::string_view expected) const;

  std::unique_ptr<std::istream> in_;
  std::string source_;
  Sha256 hash_;
  std::string chunk_;  // the last bytes read
  std::string_view chunk_left_;
  std::string record_;
  std::size_t line_ = 1;         // after the record
  std::size_t record_line_ = 1;  // where it begins
  Fields header_;
  Fields fields_;
  Index rows_ = 0;
};

/// A whole table in memory.
struct Table {
  Fields header;
  std::vector<Fields> rows;  ///< each as wide as the header

  /// Position of a column. Errors: as of column_position.
  std::size_t column(std::string_view name) const { return column_position(header, name, source); }
  std::string source;  ///< file name, for messages
};

/// The remaining rows.
Table whole_table(TableReader& reader);
/// A text with a header. `source` is for messages. Errors: as of TableReader.
Table parse_table(std::string_view text, const std::string& source);

/// An open regular file. Throws InputError if it is absent or no regular file.
std::unique_ptr<std::istream> open_text(const std::filesystem::path& path);

/// All of a regular file. Errors: as of open_text; IoError if reading fails.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace kvbench
