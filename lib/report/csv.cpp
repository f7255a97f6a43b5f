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

namespace kvbench {

namespace fs = std::filesystem;

// By the columns that tables of all versions start with.
FileKind table_kind(std::string name, const Fields& header) {
  const auto own = std::ranges::find(header, "run_id") - header.begin();
  std::string line = csv_line(std::span(header).first(static_cast<std::size_t>(own)));
  line.pop_back();
  return text_kind(std::move(name), line);
}

CsvWriter::CsvWriter(const fs::path& path, Fields header)
    : path_(resolved_path(path)), header_(std::move(header)), lock_(path_) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(fmt::format("{}: not a regular file", path_.string()));
  }
  if (fs::exists(status) && fs::file_size(path_, error) > 0) {
    throw InputError(fmt::format("{}: the file exists, expected another name", path_.string()));
  }
  write_file_atomically(path_, csv_line(header_));
  open_file();
}

CsvWriter::~CsvWriter() {
  if (fd_ >= 0) {
    ::fsync(fd_);
    ::close(fd_);
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
    text += csv_line(row);
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

void CsvWriter::sync() {
  const std::scoped_lock guard(mutex_);
  expect_own_name();
  if (::fsync(fd_) != 0) {
    throw_io("write it to the disk", path_, errno);
  }
}

}  // namespace kvbench
