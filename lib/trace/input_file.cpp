#include "trace/input_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/sha256.hpp"
#include "trace/refuse.hpp"

namespace kvbench::h5 {

namespace {

std::string reason(int code) {
  return std::system_category().message(code);
}

}  // namespace

InputFile::InputFile(std::string path, std::string_view expected) : path_(std::move(path)) {
  // stat comes first, because opening some devices has effects. O_NONBLOCK: a pipe that replaced
  // the file in between must not block.
  struct stat about {};
  if (::stat(path_.c_str(), &about) != 0) {
    raise<InputError>("{}: cannot be opened: {}", path_,
                      errno == ENOENT ? "no such file" : reason(errno));
  }
  const auto expect_regular = [&] {
    if (!S_ISREG(about.st_mode)) {
      raise<InputError>("{}: is a directory or device, expected {}", path_, expected);
    }
  };
  expect_regular();
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (descriptor() < 0) {
    raise<InputError>("{}: cannot be opened: {}", path_,
                      errno == EACCES ? "no permission to read" : reason(errno));
  }
  if (::fstat(descriptor(), &about) != 0) {
    raise<InputError>("{}: cannot be read: {}", path_, reason(errno));
  }
  expect_regular();
  bytes_ = static_cast<std::uint64_t>(about.st_size);
  opened_ = state();
  // HDF5 locks files that it writes. Other errors, as of file systems without locks, are ignored.
  if (::flock(descriptor(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    raise<InputError>("{}: is being written by another program, expected a complete file", path_);
  }
  if (!has_signature()) {
    raise<InputError>("{}: is not HDF5, expected {}", path_, expected);
  }
}

InputFile::State InputFile::state() const {
  struct stat about {};
  if (::fstat(descriptor(), &about) != 0) {
    return {};
  }
  return {static_cast<std::int64_t>(about.st_dev),
          static_cast<std::int64_t>(about.st_ino),
          about.st_size,
          about.st_mtim.tv_sec,
          about.st_mtim.tv_nsec,
          about.st_ctim.tv_sec,
          about.st_ctim.tv_nsec};
}

bool InputFile::unchanged() const {
  return state() == opened_;
}

std::string InputFile::sha256() const {
  return sha256_of(descriptor(), path_);
}

std::string InputFile::read(std::uint64_t address, std::span<std::uint8_t> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(descriptor(), to.data(), to.size(), static_cast<off_t>(address));
    if (got < 0 && errno != EINTR) {
      return reason(errno);
    }
    if (got == 0) {
      return "the file ends before it";
    }
    const auto step = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    address += step;
    to = to.subspan(step);
  }
  return {};
}

// The signature is at byte 0, or after a user block at 512, 1024, 2048, ...
bool InputFile::has_signature() const {
  constexpr std::array<std::uint8_t, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  std::array<std::uint8_t, 8> head{};
  for (std::uint64_t at = 0; at < bytes_; at = at == 0 ? 512 : 2 * at) {
    if (read(at, head).empty() && head == kSignature) {
      return true;
    }
  }
  return false;
}

}  // namespace kvbench::h5
