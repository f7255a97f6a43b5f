#include "report/table_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 18;
constexpr std::size_t kLongestRow = std::size_t{1} << 26;
constexpr std::size_t kMostFields = std::size_t{1} << 16;
constexpr int kEnd = -1;

// Finds the end of a record: a line end outside quotes.
struct RecordEnd {
  bool quoted = false;
  std::size_t length = 0;  // searched so far

  // Returns false if the text ends first; may be called again with more text.
  bool find(std::string_view text) {
    while (true) {
      const std::string_view rest = text.substr(length);
      const std::size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      // A doubled quote toggles twice.
      quoted = quoted != (std::ranges::count(part, '"') % 2 == 1);
      length += part.size();
      if (end == std::string_view::npos) {
        return false;
      }
      ++length;
      if (!quoted) {
        return true;
      }
    }
  }
};

}  // namespace

std::unique_ptr<std::istream> open_text(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw InputError(fmt::format("{}: no such file", path.string()));
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw InputError(fmt::format("{}: not a regular file", path.string()));
  }
  auto in = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!*in) {
    throw_io("read it", path, errno);
  }
  return in;
}

std::string read_text_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::istream> in = open_text(path);
  std::ostringstream text;
  if (in->peek() != std::istream::traits_type::eof() && !(text << in->rdbuf())) {
    throw_io("read it", path, errno);
  }
  return std::move(text).str();
}

TableReader::TableReader(const std::filesystem::path& path)
    : TableReader(open_text(path), path.string()) {}

TableReader::TableReader(std::unique_ptr<std::istream> text, std::string source)
    : in_(std::move(text)), source_(std::move(source)) {
  constexpr std::string_view bom = "\xEF\xBB\xBF";
  while (buffer_.size() < bom.size() && read_more()) {
  }
  if (buffer_.starts_with(bom)) {
    at_ = bom.size();
  }
  check_text();
  if (!next_record()) {
    throw InputError(fmt::format("{}: the file is empty, expected a header", source_));
  }
  header_ = fields_;
  std::set<std::string> names;
  for (const std::string& name : header_) {
    if (!names.insert(name).second) {
      throw InputError(fmt::format("{}: line {}: duplicate column `{}` in the header", source_,
                                   record_line_, name));
    }
  }
}

// Names common binary formats.
void TableReader::check_text() const {
  const std::string_view text(buffer_);
  const char* what = text.starts_with("\x89HDF")      ? "an HDF5 file"
                     : text.starts_with("\x1f\x8b")   ? "a gzip file"
                     : text.starts_with("PK\x03\x04") ? "a zip file"
                                                      : nullptr;
  if (what != nullptr) {
    throw InputError(
        fmt::format("{}: not a results table (it is {}); expected OUT.csv", source_, what));
  }
}

bool TableReader::next() {
  if (!next_record()) {
    return false;
  }
  if (fields_.size() != header_.size()) {
    fail(record_line_, fmt::format("{} fields", fields_.size()),
         fmt::format("{} as in the header", header_.size()));
  }
  ++rows_;
  return true;
}

// Reads the next record that is no empty line; false at the end.
bool TableReader::next_record() {
  while (find_record()) {
    parsed_ = 0;
    while (peek() == '\n' || peek() == '\r') {
      read_line_end();
    }
    if (peek() != kEnd) {
      parse();
      return true;
    }
  }
  return false;
}

// Finds the bytes of the next record.
bool TableReader::find_record() {
  RecordEnd end;
  while (!end.find(std::string_view(buffer_).substr(at_))) {
    if (end.length > kLongestRow) {
      fail(line_, fmt::format("a row of more than {} bytes", kLongestRow),
           "less (a quote that never closes?)");
    }
    if (!read_more()) {
      if (end.length == 0) {
        return false;
      }
      break;
    }
  }
  record_ = std::string_view(buffer_).substr(at_, end.length);
  at_ += end.length;
  return true;
}

bool TableReader::read_more() {
  buffer_.erase(0, std::exchange(at_, 0));
  const std::size_t had = buffer_.size();
  buffer_.resize(had + kReadBytes);
  in_->read(buffer_.data() + had, kReadBytes);
  if (in_->bad()) {
    throw_io("read it", source_, errno);
  }
  buffer_.resize(had + static_cast<std::size_t>(in_->gcount()));
  hash_.add(std::string_view(buffer_).substr(had));
  return buffer_.size() > had;
}

// RFC 4180.
void TableReader::parse() {
  record_line_ = line_;
  if (record_.find('\0') != std::string_view::npos) {
    fail(line_, "a byte 0", "text");
  }
  std::size_t count = 0;
  do {
    if (count == kMostFields) {
      fail(line_, fmt::format("a row of more than {} fields", kMostFields), "fewer");
    }
    if (count == fields_.size()) {
      fields_.emplace_back();
    }
    std::string& field = fields_[count++];
    if (consume('"')) {
      quoted(field);
    } else {
      bare(field);
    }
  } while (consume(','));
  fields_.resize(count);
  if (peek() != kEnd) {
    read_line_end();
  }
}

void TableReader::bare(std::string& field) {
  const std::string_view rest = record_.substr(parsed_);
  field.assign(rest.begin(), std::ranges::find_if(
                                 rest, [](char c) { return c == ',' || c == '\n' || c == '\r'; }));
  if (field.find('"') != std::string::npos) {
    fail(line_, "a quote inside an unquoted field", "the whole field in quotes");
  }
  parsed_ += field.size();
}

// Reads a field after its first quote.
void TableReader::quoted(std::string& field) {
  field.clear();
  while (true) {
    const std::size_t quote = record_.find('"', parsed_);
    if (quote == std::string_view::npos) {
      fail(line_, "the end of the file inside quotes", "a closing quote");
    }
    field += record_.substr(parsed_, quote - parsed_);
    parsed_ = quote + 1;
    if (!consume('"')) {
      break;
    }
    field += '"';
  }
  line_ += static_cast<std::size_t>(std::ranges::count(field, '\n'));
  if (peek() != kEnd && peek() != ',' && peek() != '\n' && peek() != '\r') {
    fail(line_, fmt::format("`{}` after a closing quote", record_[parsed_]),
         "a comma or a line end");
  }
}

int TableReader::peek() const {
  return parsed_ < record_.size() ? static_cast<unsigned char>(record_[parsed_]) : kEnd;
}

bool TableReader::consume(char c) {
  const bool there = parsed_ < record_.size() && record_[parsed_] == c;
  parsed_ += there ? 1 : 0;
  return there;
}

void TableReader::read_line_end() {
  if (consume('\r') && peek() != '\n') {
    fail(line_, "a CR without LF", "LF or CRLF at the end of a line");
  }
  ++parsed_;
  ++line_;
}

void TableReader::fail(std::size_t line, std::string_view got, std::string_view expected) const {
  throw InputError(fmt::format("{}: line {}: got {}, expected {}", source_, line, got, expected));
}

Table whole_table(TableReader& reader) {
  Table table;
  table.source = reader.source();
  table.header = reader.header();
  while (reader.next()) {
    table.rows.push_back(reader.row());
  }
  return table;
}

Table parse_table(std::string_view text, const std::string& source) {
  TableReader reader(std::make_unique<std::istringstream>(std::string(text)), source);
  return whole_table(reader);
}

Table read_table(const std::filesystem::path& path) {
  TableReader reader(path);
  return whole_table(reader);
}

}  // namespace kvbench
