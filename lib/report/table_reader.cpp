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

constexpr std::size_t kLongestRow = std::size_t{1} << 26;
constexpr std::size_t kMostFields = std::size_t{1} << 16;

// Removes `what` from the front of `text` if it is there.
bool take(std::string_view& text, char what) {
  const bool there = text.starts_with(what);
  text.remove_prefix(there ? 1 : 0);
  return there;
}

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
void TableReader::check_text() {
  std::string text(4, '\0');
  in_->read(text.data(), std::ssize(text));
  in_->clear();
  in_->seekg(0);
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
  constexpr std::string_view bom = "\xEF\xBB\xBF";
  while (read_record()) {
    if (line_ == 1 && record_.starts_with(bom)) {
      record_.erase(0, bom.size());
    }
    if (record_ == "\n" || record_ == "\r\n") {
      ++line_;
    } else if (!record_.empty()) {
      parse();
      return true;
    }
  }
  return false;
}

// Reads the next bytes of the file; false at the end.
bool TableReader::read_chunk() {
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  chunk_.resize(kChunk);
  in_->read(chunk_.data(), std::ssize(chunk_));
  if (in_->bad()) {
    throw_io("read it", source_, errno);
  }
  chunk_.resize(static_cast<std::size_t>(in_->gcount()));
  hash_.add(chunk_);
  chunk_left_ = chunk_;
  return !chunk_.empty();
}

// Reads up to the next line end outside quotes.
bool TableReader::read_record() {
  record_.clear();
  bool quoted = false;
  while (!chunk_left_.empty() || read_chunk()) {
    const std::size_t end = std::min(chunk_left_.find('\n'), chunk_left_.size() - 1) + 1;
    const std::string_view piece = chunk_left_.substr(0, end);
    record_ += piece;
    chunk_left_.remove_prefix(end);
    quoted = quoted != (std::ranges::count(piece, '"') % 2 == 1);  // a doubled quote toggles twice
    if (piece.ends_with('\n') && !quoted) {
      break;
    }
    if (record_.size() > kLongestRow) {
      fail(line_, fmt::format("a row of more than {} bytes", kLongestRow),
           "less (a quote that never closes?)");
    }
  }
  return !record_.empty();
}

// RFC 4180.
void TableReader::parse() {
  record_line_ = line_;
  if (record_.find('\0') != std::string::npos) {
    fail(line_, "a byte 0", "text");
  }
  std::string_view rest = record_;
  std::size_t count = 0;
  do {
    if (count == kMostFields) {
      fail(line_, fmt::format("a row of more than {} fields", kMostFields), "fewer");
    }
    if (count == fields_.size()) {
      fields_.emplace_back();
    }
    std::string& field = fields_[count++];
    rest = take(rest, '"') ? quoted(rest, field) : bare(rest, field);
  } while (take(rest, ','));
  fields_.resize(count);
  if (take(rest, '\r') && !rest.starts_with('\n')) {
    fail(line_, "a CR without LF", "LF or CRLF at the end of a line");
  }
  line_ += rest.size();
}

// Reads a field; returns what follows it.
std::string_view TableReader::bare(std::string_view rest, std::string& field) const {
  const auto end =
      std::ranges::find_if(rest, [](char c) { return c == ',' || c == '\n' || c == '\r'; });
  field.assign(rest.begin(), end);
  if (field.find('"') != std::string::npos) {
    fail(line_, "a quote inside an unquoted field", "the whole field in quotes");
  }
  return rest.substr(field.size());
}

// The same after its first quote.
std::string_view TableReader::quoted(std::string_view rest, std::string& field) {
  field.clear();
  while (true) {
    const std::size_t quote = rest.find('"');
    if (quote == std::string_view::npos) {
      fail(line_, "the end of the file inside quotes", "a closing quote");
    }
    field += rest.substr(0, quote);
    rest.remove_prefix(quote + 1);
    if (!take(rest, '"')) {
      break;
    }
    field += '"';
  }
  line_ += static_cast<std::size_t>(std::ranges::count(field, '\n'));
  if (!rest.empty() && rest.find_first_of(",\r\n") != 0) {
    fail(line_, fmt::format("`{}` after a closing quote", rest.front()), "a comma or a line end");
  }
  return rest;
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

}  // namespace kvbench
