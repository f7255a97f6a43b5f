#include "report/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "report/csv.hpp"

namespace kvbench {
namespace {

constexpr std::string_view kMagic = "kvbench-journal 1 ";
constexpr std::size_t kMostIdentity = 4096;

// Precedes each record. Its own checksum detects a torn header.
struct RecordHead {
  std::int64_t number = 0;
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;  // of the record's bytes
  std::uint32_t own = 0;       // of the fields above
};
static_assert(sizeof(RecordHead) == 24, "no padding: the bytes go to the file as they are");

std::uint32_t checksum_of(const void* data, std::size_t size) {
  return libdeflate_crc32(0, data, size);
}

std::uint32_t own_checksum(const RecordHead& head) {
  return checksum_of(&head, offsetof(RecordHead, own));
}

std::string_view bytes_text(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

// Reads bytes at an offset. Returns how many there are before the end of the file.
std::size_t read_at(int fd, const std::filesystem::path& path, void* to, std::size_t size,
                    std::uint64_t offset) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got =
        ::pread(fd, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw_io("read it", path, errno);
    }
    if (got == 0) {
      break;
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

// The header of the record at an offset, whose bytes go to `bytes`; nothing if there is no whole
// record. `end`: of the file. After a power cut the size may be right and the bytes missing.
std::optional<RecordHead> read_record(int fd, const std::filesystem::path& path, std::uint64_t at,
                                      std::uint64_t end, std::vector<std::byte>& bytes) {
  RecordHead head;
  if (end < at + sizeof head || read_at(fd, path, &head, sizeof head, at) < sizeof head ||
      head.own != own_checksum(head) || head.size > end - at - sizeof head) {
    return std::nullopt;
  }
  bytes.resize(head.size);
  if (read_at(fd, path, bytes.data(), bytes.size(), at + sizeof head) < bytes.size() ||
      checksum_of(bytes.data(), bytes.size()) != head.checksum) {
    return std::nullopt;
  }
  return head;
}

// Reads the records of a file one after the other.
class Scanner {
 public:
  Scanner(int fd, const std::filesystem::path& path, std::uint64_t begin)
      : fd_(fd), path_(path), size_(std::filesystem::file_size(path)), at_(begin) {}

  // The whole record at the current offset; then the offset is after it.
  std::optional<RecordHead> next() {
    const std::optional<RecordHead> head = read_record(fd_, path_, at_, size_, bytes_);
    at_ += head ? sizeof *head + head->size : 0;
    return head;
  }

  // Moves to the next whole record after the current offset. Returns whether there is one.
  bool skip_to_next() {
    constexpr std::size_t kBlock = 1 << 20;
    std::string block;
    for (std::uint64_t begin = at_ + 1; begin + sizeof(RecordHead) <= size_;
         begin += kBlock - sizeof(RecordHead) + 1) {
      block.resize(std::min<std::uint64_t>(kBlock, size_ - begin));
      block.resize(read_at(fd_, path_, block.data(), block.size(), begin));
      for (std::size_t i = 0; i + sizeof(RecordHead) <= block.size(); ++i) {
        RecordHead head;
        std::memcpy(&head, block.data() + i, sizeof head);
        if (head.own == own_checksum(head) && read_record(fd_, path_, begin + i, size_, bytes_)) {
          at_ = begin + i;
          return true;
        }
      }
    }
    return false;
  }

  std::uint64_t at() const { return at_; }

 private:
  int fd_;
  const std::filesystem::path& path_;
  std::uint64_t size_;
  std::uint64_t at_;
  std::vector<std::byte> bytes_;
};

// The identity of a journal, and where its records begin; nothing if the file is none.
std::optional<std::string> identity_of(int fd, const std::filesystem::path& path,
                                       std::uint64_t& begin) {
  std::string first(kMagic.size() + kMostIdentity, '\0');
  first.resize(read_at(fd, path, first.data(), first.size(), 0));
  const std::size_t line = first.find('\n');
  if (!first.starts_with(kMagic) || line == std::string::npos) {
    return std::nullopt;
  }
  begin = line + 1;
  return first.substr(kMagic.size(), line - kMagic.size());
}

Descriptor open_file(const std::filesystem::path& path, int flags) {
  Descriptor out(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (out.get() < 0) {
    throw_io("open it", path, errno);
  }
  return out;
}

}  // namespace

FileKind journal_kind() {
  return text_kind("a journal", std::string(kMagic));
}

Journal::Journal(std::filesystem::path path, std::string_view identity, bool resume, Damage damage)
    : path_(std::move(path)), fd_(open_file(path_, O_RDWR | O_APPEND | O_CREAT)) {
  if (resume && read_identity() && identity_ == identity) {
    list_records(damage);
    cut(end_);
  } else {
    const std::string first = fmt::format("{}{}\n", kMagic, identity);
    cut(0);
    if (!write_all(fd_.get(), first)) {
      throw_io("write it", path_, errno);
    }
    identity_ = identity;
    begin_ = end_ = first.size();
  }
}

Journal::Journal(std::filesystem::path path, Damage damage)
    : path_(std::move(path)), fd_(open_file(path_, O_RDONLY)) {
  if (!read_identity()) {
    throw InputError(fmt::format("{}: not a log of kvbench", path_.string()));
  }
  list_records(damage);
}

void Journal::cut(std::uint64_t size) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
    throw_io("cut it", path_, errno);
  }
  end_ = size;
}

// Returns whether the file is a journal.
bool Journal::read_identity() {
  const std::optional<std::string> found = identity_of(fd_.get(), path_, begin_);
  identity_ = found.value_or("");
  end_ = begin_;
  return found.has_value();
}

void Journal::list_records(Damage damage) {
  Scanner scanner(fd_.get(), path_, begin_);
  for (Index count = 1;; ++count) {
    const std::uint64_t offset = scanner.at() + sizeof(RecordHead);
    if (const std::optional<RecordHead> head = scanner.next()) {
      locations_.push_back({head->number, offset});
      sorted_ = false;
      end_ = scanner.at();
      continue;
    }
    if (!scanner.skip_to_next()) {
      return;
    }
    if (damage == Damage::refuse) {
      throw InputError(fmt::format(
          "{}: record {} was changed after it was written, and records follow it; expected the "
          "file of the run (kvbench merge --salvage takes the whole records)",
          path_.string(), count));
    }
  }
}

void Journal::append(Index number, std::span<const std::byte> record) {
  RecordHead head{number, record.size(), checksum_of(record.data(), record.size()), 0};
  head.own = own_checksum(head);
  const std::lock_guard lock(mutex_);
  const std::uint64_t offset = end_ + sizeof head;
  if (!write_all(fd_.get(), bytes_text(&head, sizeof head)) ||
      !write_all(fd_.get(), bytes_text(record.data(), record.size()))) {
    const int error = errno;
    cut(end_);
    throw_io("write it", path_, error);
  }
  locations_.push_back({number, offset});
  sorted_ = false;
  end_ = offset + head.size;
}

// The mutex is held.
const Journal::Location* Journal::find(Index number) const {
  if (!std::exchange(sorted_, true)) {
    std::ranges::stable_sort(locations_, {}, &Location::number);
    // Of equal numbers the last record counts.
    const auto first =
        std::unique(locations_.rbegin(), locations_.rend(),
                    [](const Location& a, const Location& b) { return a.number == b.number; });
    locations_.erase(locations_.begin(), first.base());
  }
  const auto found = std::ranges::lower_bound(locations_, number, {}, &Location::number);
  return found == locations_.end() || found->number != number ? nullptr : &*found;
}

bool Journal::has(Index number) const {
  const std::lock_guard lock(mutex_);
  return find(number) != nullptr;
}

std::vector<Index> Journal::numbers() const {
  const std::lock_guard lock(mutex_);
  find(0);  // sorts
  std::vector<Index> out;
  out.reserve(locations_.size());
  std::ranges::transform(locations_, std::back_inserter(out), &Location::number);
  return out;
}

std::vector<std::byte> Journal::read(Index number) const {
  std::uint64_t offset = 0;
  std::uint64_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    const Location* location = find(number);
    if (location == nullptr) {
      throw std::out_of_range(fmt::format("{}: no record {}", path_.string(), number));
    }
    offset = location->offset;
    end = end_;
  }
  std::vector<std::byte> out;
  if (!read_record(fd_.get(), path_, offset - sizeof(RecordHead), end, out)) {
    throw IoError(
        fmt::format("{}: record {} was changed after it was written", path_.string(), number));
  }
  return out;
}

bool Journal::has_records(const std::filesystem::path& path) {
  const Descriptor file = open_file(path, O_RDONLY);
  std::uint64_t begin = 0;
  if (!identity_of(file.get(), path, begin)) {
    return false;
  }
  Scanner scanner(file.get(), path, begin);
  return scanner.next() || scanner.skip_to_next();
}

void Journal::rename(const std::filesystem::path& path) {
  rename_file(path_, path);
  path_ = path;
}

void Journal::clear() {
  const std::lock_guard lock(mutex_);
  locations_.clear();
  cut(begin_);
}

void Journal::remove() {
  fd_.reset();
  std::error_code ignored;  // a file that remains is emptied at the next start
  std::filesystem::remove(path_, ignored);
}

}  // namespace kvbench
