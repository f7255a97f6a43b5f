#include "report/csv.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Record {
  Fields fields;
  std::size_t line = 0;  // where it begins, 1-based
};

/// RFC 4180; one object reads one text.
class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {
    constexpr std::string_view bom = "\xEF\xBB\xBF";
    if (text_.starts_with(bom)) {
      text_.remove_prefix(bom.size());
    }
  }

  /// False at the end of the text.
  bool next(Record& record) {
    while (peek() == '\n' || peek() == '\r') {
      take_line_end();
    }
    if (peek() == kEnd) {
      return false;
    }
    record = {{}, line_};
    do {
      record.fields.push_back(take('"') ? quoted() : bare());
    } while (take(','));
    if (peek() != kEnd) {
      take_line_end();
    }
    return true;
  }

 private:
  static constexpr int kEnd = -1;

  int peek() const { return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : kEnd; }

  bool take(char c) {
    const bool there = peek() == c;
    at_ += there ? 1 : 0;
    return there;
  }

  void take_line_end() {
    if (take('\r') && peek() != '\n') {
      fail(line_, "a CR that no LF follows", "LF or CRLF at the end of a line");
    }
    ++at_;
    ++line_;
  }

  std::string bare() {
    const std::string_view field = text_.substr(at_, text_.find_first_of(",\n\r", at_) - at_);
    if (field.find('"') != std::string_view::npos) {
      fail(line_, "a quote inside an unquoted field", "the whole field in quotes");
    }
    at_ += field.size();
    return std::string(field);
  }

  // Behind the first quote.
  std::string quoted() {
    const std::size_t first_line = line_;
    std::string out;
    while (true) {
      const std::size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        fail(first_line, "the end of the file inside quotes", "a closing quote");
      }
      out += text_.substr(at_, quote - at_);
      at_ = quote + 1;
      if (!take('"')) {
        break;
      }
      out += '"';
    }
    line_ += static_cast<std::size_t>(std::count(out.begin(), out.end(), '\n'));
    if (peek() != kEnd && peek() != ',' && peek() != '\n' && peek() != '\r') {
      fail(line_, fmt::format("`{}` behind a closing quote", text_[at_]), "a comma or a line end");
    }
    return out;
  }

  [[noreturn]] void fail(std::size_t line, std::string_view got, std::string_view expected) const {
    throw InputError(fmt::format("{}: line {}: got {}, expected {}", source_, line, got, expected));
  }

  std::string_view text_;
  std::string_view source_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

}  // namespace

std::size_t Table::column(std::string_view name) const {
  const auto it = std::find(header.begin(), header.end(), name);
  if (it == header.end()) {
    throw InputError(fmt::format("{}: column `{}` is missing", source, name));
  }
  return static_cast<std::size_t>(it - header.begin());
}

std::string csv_line(std::span<const std::string> fields) {
  if (fields.size() == 1 && fields.front().empty()) {
    return "\"\"\n";
  }
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) {
      line += ',';
    }
    if (fields[i].find_first_of(",\"\r\n") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (const char c : fields[i]) {
      if (c == '"') {
        line += '"';
      }
      line += c;
    }
    line += '"';
  }
  line += '\n';
  return line;
}

Table parse_table(std::string_view text, const std::string& source) {
  Parser parser(text, source);
  Table table;
  table.source = source;
  Record record;
  if (!parser.next(record)) {
    throw InputError(fmt::format("{}: the file is empty, expected a header", source));
  }
  table.header = std::move(record.fields);
  std::set<std::string> names;
  for (const std::string& name : table.header) {
    if (!names.insert(name).second) {
      throw InputError(fmt::format("{}: line {}: column `{}` stands twice in the header", source,
                                   record.line, name));
    }
  }
  while (parser.next(record)) {
    if (record.fields.size() != table.header.size()) {
      throw InputError(fmt::format("{}: line {}: got {} fields, expected {} as in the header",
                                   source, record.line, record.fields.size(), table.header.size()));
    }
    table.rows.push_back(std::move(record.fields));
  }
  return table;
}

std::string read_text_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw InputError(fmt::format("{}: no such file", path.string()));
  }
  if (!fs::is_regular_file(status)) {
    throw InputError(fmt::format("{}: not a regular file", path.string()));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || (in.peek() != std::ifstream::traits_type::eof() && !(text << in.rdbuf()))) {
    throw IoError(fmt::format("{}: cannot read it: {}", path.string(), std::strerror(errno)));
  }
  return std::move(text).str();
}

Table read_table(const fs::path& path) {
  return parse_table(read_text_file(path), path.string());
}

std::size_t whole_records_length(std::string_view text) {
  bool quoted = false;
  std::size_t length = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      quoted = !quoted;  // a doubled quote toggles twice
    } else if (text[i] == '\n' && !quoted) {
      length = i + 1;
    }
  }
  return length;
}

FileLock::FileLock(const fs::path& path) : lock_path_(resolved_path(path)) {
  lock_path_ += ".lock";
  while (true) {
    fd_ = ::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) {
      throw_io("create it", lock_path_, errno);
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd_);
      if (error == EWOULDBLOCK) {
        throw InputError(fmt::format("another run is writing {} (lock {} is held)", path.string(),
                                     lock_path_.string()));
      }
      throw_io("lock it", lock_path_, error);
    }
    // The former holder may have removed the name between our open and our lock; then we hold a
    // file that nobody else will find, and must begin again.
    struct stat held {};
    struct stat named {};
    if (::fstat(fd_, &held) == 0 && ::stat(lock_path_.c_str(), &named) == 0 &&
        held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
      if (held.st_size == 0) {
        return;
      }
      ::close(fd_);  // and the name stays, which the destructor would remove
      throw InputError(fmt::format("{}: has {} bytes, expected a lock file, which is empty",
                                   lock_path_.string(), held.st_size));
    }
    ::close(fd_);
  }
}

FileLock::~FileLock() {
  ::unlink(lock_path_.c_str());
  ::close(fd_);
}

CsvWriter::CsvWriter(const fs::path& path, Fields header, Mode mode)
    : path_(resolved_path(path)), header_(std::move(header)), lock_(path_) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(fmt::format("{}: not a regular file", path_.string()));
  }
  if (mode == Mode::staged) {
    return;
  }
  const bool empty = !fs::exists(status) || fs::file_size(path_, error) == 0;
  if (mode == Mode::create && !empty) {
    throw InputError(fmt::format("{}: the file exists; resume it or name another", path_.string()));
  }
  if (mode == Mode::resume && !empty) {
    recover();
  } else {
    write_file_atomically(path_, csv_line(header_));
  }
  open_file();
}

CsvWriter::~CsvWriter() {
  if (fd_ >= 0) {
    ::fsync(fd_);
    ::close(fd_);
  }
}

void CsvWriter::recover() {
  const std::string text = read_text_file(path_);
  const std::size_t whole = whole_records_length(text);
  const std::string head = csv_line(header_);
  if (whole == 0) {
    if (head.compare(0, text.size(), text) != 0) {
      throw InputError(fmt::format("{}: line 1: not a result file of this schema (got `{:.40}`)",
                                   path_.string(), text));
    }
    write_file_atomically(path_, head);
    return;
  }
  Table table = parse_table(std::string_view(text).substr(0, whole), path_.string());
  if (table.header != header_) {
    const auto [got, expected] =
        std::mismatch(table.header.begin(), table.header.end(), header_.begin(), header_.end());
    throw InputError(fmt::format("{}: line 1: the header differs: got `{}`, expected `{}`",
                                 path_.string(), got == table.header.end() ? "its end" : *got,
                                 expected == header_.end() ? "its end" : *expected));
  }
  if (whole < text.size() && ::truncate(path_.c_str(), static_cast<off_t>(whole)) != 0) {
    throw_io("cut off its torn last line", path_, errno);
  }
  existing_ = std::move(table.rows);
}

void CsvWriter::open_file() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd_ < 0) {
    throw_io("open it for writing", path_, errno);
  }
}

std::string CsvWriter::lines(std::span<const Fields> rows) const {
  std::string text;
  for (const Fields& row : rows) {
    if (row.size() != header_.size()) {
      throw InputError(fmt::format("{}: a row has {} fields, expected {}", path_.string(),
                                   row.size(), header_.size()));
    }
    text += csv_line(row);
  }
  return text;
}

void CsvWriter::append(std::span<const Fields> rows) {
  const std::string text = lines(rows);
  const std::scoped_lock guard(mutex_);
  struct stat before {};
  if (::fstat(fd_, &before) != 0) {
    throw_io("append to it", path_, errno);
  }
  if (!write_all(fd_, text)) {
    const int error = errno;
    if (::ftruncate(fd_, before.st_size) != 0) {
      throw IoError(fmt::format("{}: cannot append to it: {}; its last line is torn",
                                path_.string(), std::strerror(error)));
    }
    throw_io("append to it", path_, error);
  }
}

void CsvWriter::rewrite_sorted(std::span<const Fields> rows) {
  const std::string text = csv_line(header_) + lines(rows);
  const std::scoped_lock guard(mutex_);
  write_file_atomically(path_, text);
  ::close(fd_);
  open_file();
}

StagedFile CsvWriter::stage(std::span<const Fields> rows) const {
  return {path_, csv_line(header_) + lines(rows)};
}

void CsvWriter::sync() {
  const std::scoped_lock guard(mutex_);
  if (::fsync(fd_) != 0) {
    throw_io("write it to the disk", path_, errno);
  }
}

}  // namespace kvbench
