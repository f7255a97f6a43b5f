#include "report/csv.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "report/row_crc.hpp"

namespace kvbench {

namespace fs = std::filesystem;

// By the columns that tables of all versions start with.
FileKind table_kind(std::string name, const Fields& header) {
  std::string line = csv_line(std::span(header).first(row_crc_place(header)));
  line.pop_back();
  return text_kind(std::move(name), line);
}

CsvWriter::CsvWriter(const fs::path& path, Fields header, Mode mode, std::string run,
                     const ExistingRow& existing, const std::string& earlier,
                     std::unique_ptr<FileLock> lock)
    : path_(resolved_path(path)),
      header_(std::move(header)),
      checks_at_(row_crc_place(header_)),
      run_(std::move(run)),
      lock_(lock ? std::move(lock) : std::make_unique<FileLock>(path_)) {
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
    throw InputError(
        fmt::format("{}: the file exists, expected --resume or another name", path_.string()));
  }
  if (mode == Mode::resume && !empty) {
    recover(existing, earlier);
  } else {
    write_file_atomically(path_, checked_header_line(header_));
  }
  open_file();
}

CsvWriter::~CsvWriter() {
  if (fd_ >= 0) {
    ::fsync(fd_);
    ::close(fd_);
  }
}

void CsvWriter::recover(const ExistingRow& existing, const std::string& earlier) {
  TableReader reader(path_, TableReader::Last::torn);
  const std::string head = checked_header_line(header_);
  if (reader.header().empty()) {
    if (!head.starts_with(reader.rest())) {
      throw InputError(fmt::format("{}: line 1: not a result file of this schema (got `{:.40}`)",
                                   path_.string(), reader.rest()));
    }
    write_file_atomically(path_, head);
    return;
  }
  if (!reader.checked() && reader.header() == header_) {
    throw InputError(
        fmt::format("{}: line 1: got rows without checksums, as of a schema before 1.2, expected "
                    "the columns `run_id` and `row_crc`",
                    path_.string()));
  }
  check_header(reader.header(), header_, reader.source());
  const std::uint64_t head_end = reader.end();
  std::uint64_t row_bytes = 0;
  while (reader.next()) {
    row_bytes += reader.text().size();
    has_strays_ = has_strays_ || reader.text().ends_with("\r\n");
    const bool of_earlier = !earlier.empty() && reader.run() == earlier;
    holds_earlier_ = holds_earlier_ || of_earlier;
    if (reader.run() != run_ && !of_earlier) {
      throw InputError(
          fmt::format("{}: holds rows of run {:.40}, expected {} (another plan, or "
                      "other traces)",
                      path_.string(), reader.run(), run_));
    }
    if (existing) {
      existing(reader);
    }
  }
  has_strays_ = has_strays_ || head_end != head.size() || reader.end() != head_end + row_bytes;
  // A killed run leaves one torn row at the end.
  if (const std::size_t behind = first_whole_row(reader.rest())) {
    throw InputError(
        fmt::format("{}: line {}: a whole row after a quote that never closes (a row "
                    "was changed after it was written)",
                    path_.string(), reader.line() - 1 + behind));
  }
  if (!reader.rest().empty()) {
    open_file();
    const bool cut = ::ftruncate(fd_, static_cast<off_t>(reader.end())) == 0;
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    if (!cut) {
      throw_io("cut off its torn last line", path_, error);
    }
  }
}

// The path is resolved; a link created there since is not followed.
void CsvWriter::open_file() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd_ < 0) {
    throw_io("open it for writing", path_, errno);
  }
  struct stat about {};
  if (::fstat(fd_, &about) != 0 || !S_ISREG(about.st_mode)) {
    ::close(std::exchange(fd_, -1));
    throw IoError(fmt::format("{}: no longer a regular file", path_.string()));
  }
}

// The path must still name the open file.
void CsvWriter::expect_own_name() const {
  struct stat open {};
  struct stat named {};
  if (::fstat(fd_, &open) != 0 || ::lstat(path_.c_str(), &named) != 0 ||
      open.st_dev != named.st_dev || open.st_ino != named.st_ino) {
    throw IoError(
        fmt::format("{}: renamed, replaced or removed by another process while its rows were "
                    "written",
                    path_.string()));
  }
}

void CsvWriter::append(std::span<const Fields> rows) {
  std::string text;
  for (const Fields& row : rows) {
    if (row.size() != header_.size()) {
      throw InputError(fmt::format("{}: a row has {} fields, expected {}", path_.string(),
                                   row.size(), header_.size()));
    }
    text += checked_line(row, run_, checks_at_);
  }
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

StagedFile CsvWriter::stage() const {
  StagedFile out(path_);
  out.put(checked_header_line(header_));
  return out;
}

void CsvWriter::replace(StagedFile file) {
  const std::scoped_lock guard(mutex_);
  expect_own_name();
  file.close();
  file.publish();
  holds_earlier_ = has_strays_ = false;
  ::close(fd_);
  open_file();
}

std::string CsvWriter::line_of_this_run(std::string_view line) const {
  return line_of_run(line, run_, checks_at_);
}

void CsvWriter::sync() {
  const std::scoped_lock guard(mutex_);
  expect_own_name();
  if (::fsync(fd_) != 0) {
    throw_io("write it to the disk", path_, errno);
  }
}

}  // namespace kvbench
