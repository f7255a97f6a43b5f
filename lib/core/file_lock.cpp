#include "core/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/error.hpp"
#include "core/files.hpp"

namespace kvbench {

namespace fs = std::filesystem;

FileLock::FileLock(const fs::path& path) {
  fs::path lock = resolved_path(path);
  lock += ".lock";
  while (true) {
    fd_ = Descriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (fd_.get() < 0) {
      throw_io("create it", lock, errno);
    }
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        throw InputError(fmt::format("another run is writing {} (lock {} is held)", path.string(),
                                     lock.string()));
      }
      throw_io("lock it", lock, errno);
    }
    // The previous holder may have removed the name between open and flock: then retry.
    struct stat held {};
    struct stat named {};
    if (::fstat(fd_.get(), &held) == 0 && ::stat(lock.c_str(), &named) == 0 &&
        held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
      if (S_ISREG(held.st_mode) && held.st_size == 0) {
        file_ = Temporary(lock);
        return;
      }
      // It is another program's and is not removed.
      throw InputError(fmt::format("{}: {}, expected a lock file, which is empty", lock.string(),
                                   S_ISREG(held.st_mode) ? fmt::format("has {} bytes", held.st_size)
                                                         : std::string("is no regular file")));
    }
  }
}

std::unique_ptr<FileLock> lock_where_possible(const fs::path& path) {
  try {
    return std::make_unique<FileLock>(path);
  } catch (const IoError&) {
    return nullptr;
  }
}

}  // namespace kvbench
