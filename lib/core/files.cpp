#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

void sync_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const Descriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ::fsync(open.get());  // best effort: some file systems reject it for folders
}

// Never destroyed: threads may write while the process ends.
std::shared_mutex& write_gate() {
  static auto* gate = new std::shared_mutex;
  return *gate;
}

// Targets of outputs, fixed when they are checked. Never destroyed, as the gate.
struct FixedPaths {
  std::mutex mutex;
  std::map<fs::path, fs::path> target;
};

FixedPaths& fixed_paths() {
  static auto* fixed = new FixedPaths;
  return *fixed;
}

fs::path follow(const fs::path& path) {
  constexpr int kMaxLinks = 40;
  fs::path out = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code error;
    const fs::path found = fs::weakly_canonical(out, error);
    if (error) {
      return out;
    }
    out = found;
    if (!fs::is_symlink(fs::symlink_status(out, error))) {
      break;
    }
    // The target of a dangling link.
    out = out.parent_path() / fs::read_symlink(out, error);
  }
  return out;
}

}  // namespace

void throw_io(std::string_view action, const fs::path& path, int error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(error)));
}

void block_writes() {
  write_gate().lock();
}

std::optional<std::string> read_at_most(const fs::path& path, std::size_t most) {
  std::ifstream file(path, std::ios::binary);
  std::string text(most + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof())) {
    return std::nullopt;
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

bool write_all(int fd, std::string_view bytes) {
  const std::shared_lock open(write_gate());
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  return true;
}

void write_message(int fd, std::string_view text) {
  // A broken pipe signals the writing thread: the other threads keep their handling of the signal.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigset_t pending;
  sigpending(&pending);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  if (!write_all(fd, text) && errno == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec now{};
    sigtimedwait(&pipe, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void fix_resolved_paths(const std::vector<fs::path>& paths) {
  std::map<fs::path, fs::path> found;
  for (const fs::path& path : paths) {
    const fs::path target = follow(path);
    found[path] = target;
    found[target] = target;
  }
  FixedPaths& fixed = fixed_paths();
  const std::lock_guard lock(fixed.mutex);
  fixed.target = std::move(found);
}

fs::path resolved_path(const fs::path& path) {
  FixedPaths& fixed = fixed_paths();
  const std::lock_guard lock(fixed.mutex);
  const auto found = fixed.target.find(path);
  return found == fixed.target.end() ? follow(path) : found->second;
}

fs::path partial_path(const fs::path& path) {
  fs::path out = path;
  out += ".tmp";
  return out;
}

void publish_file(Temporary& partial, const fs::path& path) {
  const Descriptor file(::open(partial.path().c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) {
    throw_io("sync", partial.path(), errno);
  }
  rename_file(partial.path(), path);
  partial.keep();
}

void rename_file(const fs::path& from, const fs::path& to) {
  const std::shared_lock open(write_gate());
  std::error_code error;
  const fs::file_status there = fs::symlink_status(to, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    throw IoError(
        fmt::format("{}: not a regular file, expected a regular file or a free name", to.string()));
  }
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_io("replace", to, errno);
  }
  sync_folder(to);
}

StagedFile::StagedFile(const fs::path& path) : path_(resolved_path(path)) {
  const fs::path tmp = partial_path(path_);
  ::unlink(tmp.c_str());  // O_TRUNC would empty the target of a link
  fd_ = Descriptor(::open(tmp.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd_.get() < 0) {
    throw_io("create", tmp, errno);
  }
  partial_ = Temporary(tmp);
}

StagedFile::StagedFile(const fs::path& path, std::string_view text) : StagedFile(path) {
  put(text);
  close();
}

void StagedFile::put(std::string_view text) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;
  waiting_ += text;
  if (waiting_.size() >= kAtOnce) {
    flush();
  }
}

void StagedFile::flush() {
  const std::string text = std::exchange(waiting_, {});
  if (!write_all(fd_.get(), text)) {
    const int error = errno;
    cut(size_);
    throw_io("write", partial(), error);
  }
  size_ += static_cast<off_t>(text.size());
}

void StagedFile::cut(off_t size) {
  const auto kept = static_cast<std::size_t>(std::max<off_t>(size - size_, 0));
  waiting_.resize(std::min(waiting_.size(), kept));
  size_ = std::min(size_, size);
  [[maybe_unused]] const int failed = ::ftruncate(fd_.get(), size_);
}

void StagedFile::close() {
  flush();
  if (::fsync(fd_.get()) != 0 || !fd_.reset()) {
    throw_io("write", partial(), errno);
  }
}

void StagedFile::publish() {
  rename_file(partial(), path_);
  partial_.keep();
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  StagedFile(path, text).publish();
}

}  // namespace kvbench
