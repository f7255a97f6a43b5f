#include "report/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "report/csv.hpp"

namespace kvbench {
namespace {

constexpr std::string_view kMagic = "kvbench-journal 1 ";

// Precedes each record. Its own checksum detects a torn header.
struct Head {
  std::int64_t number = 0;
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;  // of the record's bytes
  std::uint32_t own = 0;       // of the fields above
};
static_assert(sizeof(Head) == 24, "no padding: the bytes go to the file as they are");

std::uint32_t checksum_of(const void* data, std::size_t size) {
  return libdeflate_crc32(0, data, size);
}

std::uint32_t own_checksum(const Head& head) {
  return checksum_of(&head, offsetof(Head, own));
}

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw IoError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

std::string_view bytes_text(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

// Reads the next bytes. Returns false if the file ends first.
bool read_next(std::ifstream& in, const std::filesystem::path& path, void* to, std::size_t size) {
  in.read(static_cast<char*>(to), static_cast<std::streamsize>(size));
  if (in.bad() || !in.is_open()) {
    fail(path, "cannot be read");
  }
  return !in.fail();
}

}  // namespace

FileKind journal_kind() {
  return text_kind("a journal", std::string(kMagic));
}

Journal::Journal(std::filesystem::path path, std::string_view identity, bool resume)
    : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
               0666);
  if (fd_ < 0) {
    fail(path_, "cannot be opened");
  }
  try {
    if (!resume || !recover(identity)) {
      reset(identity);
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Journal::~Journal() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void Journal::cut(std::uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
    fail(path_, "cannot be cut");
  }
  end_ = size;
}

void Journal::reset(std::string_view identity) {
  const std::string first = fmt::format("{}{}\n", kMagic, identity);
  cut(0);
  if (!write_all(fd_, first)) {
    fail(path_, "cannot be written");
  }
  begin_ = end_ = first.size();
}

bool Journal::recover(std::string_view identity) {
  const std::string expected = fmt::format("{}{}\n", kMagic, identity);
  std::string first(expected.size(), '\0');
  std::ifstream in(path_, std::ios::binary);
  if (!read_next(in, path_, first.data(), first.size()) || first != expected) {
    return false;
  }
  const std::uint64_t size = std::filesystem::file_size(path_);
  begin_ = end_ = first.size();
  std::vector<std::byte> bytes;
  for (Head head; read_next(in, path_, &head, sizeof head);) {
    const std::uint64_t offset = end_ + sizeof head;
    if (head.own != own_checksum(head) || head.size > size - offset) {
      break;
    }
    // After a power cut the size may be right and the bytes missing.
    bytes.resize(head.size);
    if (!read_next(in, path_, bytes.data(), bytes.size()) ||
        checksum_of(bytes.data(), bytes.size()) != head.checksum) {
      break;
    }
    locations_[head.number] = {offset, head.size, head.checksum};
    end_ = offset + head.size;
  }
  cut(end_);
  return true;
}

void Journal::append(Index number, std::span<const std::byte> record) {
  Head head{number, record.size(), checksum_of(record.data(), record.size()), 0};
  head.own = own_checksum(head);
  const std::lock_guard lock(mutex_);
  const std::uint64_t offset = end_ + sizeof head;
  if (!write_all(fd_, bytes_text(&head, sizeof head)) ||
      !write_all(fd_, bytes_text(record.data(), record.size()))) {
    const int error = errno;
    cut(end_);
    errno = error;
    fail(path_, "cannot be written");
  }
  locations_[number] = {offset, head.size, head.checksum};
  end_ = offset + head.size;
}

bool Journal::has(Index number) const {
  const std::lock_guard lock(mutex_);
  return locations_.count(number) > 0;
}

bool Journal::empty() const {
  const std::lock_guard lock(mutex_);
  return locations_.empty();
}

std::vector<std::byte> Journal::read(Index number) const {
  Location location;
  {
    const std::lock_guard lock(mutex_);
    location = locations_.at(number);
  }
  std::vector<std::byte> out(location.size);
  std::ifstream in(path_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(location.offset));
  if (!read_next(in, path_, out.data(), out.size()) ||
      checksum_of(out.data(), out.size()) != location.checksum) {
    throw IoError(
        fmt::format("{}: record {} was changed after it was written", path_.string(), number));
  }
  return out;
}

void Journal::clear() {
  const std::lock_guard lock(mutex_);
  locations_.clear();
  cut(begin_);
}

void Journal::remove() {
  ::close(std::exchange(fd_, -1));
  std::error_code ignored;  // a file that remains is emptied at the next start
  std::filesystem::remove(path_, ignored);
}

}  // namespace kvbench
