#include "trace/canary.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <string_view>

#include "core/descriptor.hpp"
#include "core/resident.hpp"
#include "trace/refuse.hpp"

namespace kvbench::h5 {

namespace {

// Memory beyond what the process has when it begins: the least, and the most for large files. HDF5
// needs some MB; an entry of a caches file needs some 3 KB, and has more in the file.
constexpr std::uint64_t kLeastMemory = std::uint64_t{512} << 20;
constexpr std::uint64_t kMostMemory = std::uint64_t{4} << 30;
// Without memory HDF5 crashes or reports damage that is not there. With less free address space
// than the first bound no child starts; with less than the second, memory may explain its failure.
constexpr std::uint64_t kMinAddressSpace = std::uint64_t{8} << 20;
constexpr std::uint64_t kAmpleAddressSpace = std::uint64_t{64} << 20;
// For the whole file, of processor time and on the clock: disks may be slow.
constexpr int kFileSeconds = 600;

// Of the child; a sanitizer, or a library that gives up, ends it with 1.
enum ExitCode : std::uint8_t { kAccepted = 0, kRefused = 100, kNoMemory, kFailed };

std::uint64_t memory_for(const InputFile& file) {
  return std::clamp(file.bytes(), kLeastMemory, kMostMemory);
}

// Bytes of address space that may still be mapped.
std::uint64_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, process_bytes().mapped);
}

void lower_limit(int resource, rlim_t to) {
  rlimit limit{};
  getrlimit(resource, &limit);
  limit.rlim_cur = std::min(limit.rlim_cur, to);
  setrlimit(resource, &limit);
}

// Sets the limits of the child process, which has `mapped` bytes of address space. Between fork and
// _exit in a program of several threads only some calls are safe: those made here are, and glibc
// makes the allocations of `read` safe.
void confine(rlim_t mapped, const InputFile& file, int to) {
  // The child dies with its parent, leaves no core file and prints nothing.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::set_terminate(std::abort);  // the parent's handler would clean up the parent's files
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU, SIGPROF, SIGPIPE}) {
    std::signal(signal, SIG_DFL);
  }
  if (std::min(to, file.descriptor()) > STDERR_FILENO) {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
  }
  lower_limit(RLIMIT_CORE, 0);
  lower_limit(RLIMIT_CPU, kFileSeconds);
  lower_limit(RLIMIT_AS, mapped + memory_for(file));
  prctl(PR_SET_DUMPABLE, 0);
}

// Ends the child process, without running buffers or handlers of its parent.
[[noreturn]] void read_and_exit(const std::function<void()>& read, int to) noexcept {
  try {
    read();
    ::_exit(kAccepted);
  } catch (const InputError& e) {
    const std::string_view what = e.what();
    ::_exit(::write(to, what.data(), what.size()) == std::ssize(what) ? kRefused : kFailed);
  } catch (const std::bad_alloc&) {
    ::_exit(kNoMemory);
  } catch (...) {
    ::_exit(kFailed);
  }
}

struct Verdict {
  int status = 0;       // of waitpid
  bool silent = false;  // killed because it did not end
  std::string refusal;  // what the child wrote

  bool ended_by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
  bool exited_with(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
};

// What `from` holds once the child has ended, which closes the other end; false after kFileSeconds.
bool receive(int from, std::string& text) {
  std::array<char, 4096> part{};
  for (;;) {
    pollfd waiting{from, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, kFileSeconds * 1000);
    const ssize_t got = ready < 1 ? -1 : ::read(from, part.data(), part.size());
    if (got == 0) {
      return true;
    }
    if (ready == 0 || (got < 0 && errno != EINTR)) {
      return false;
    }
    text.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
}

Verdict ask(const InputFile& file, const std::function<void()>& read) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    raise<IoError>("{}: no pipe for its check can be had", file.path());
  }
  const Descriptor from(pipe[0]);
  Descriptor to(pipe[1]);
  const rlim_t mapped = process_bytes().mapped;
  pid_t child = -1;
  {
    const Session session;  // no other thread is inside HDF5 at the fork
    child = ::fork();
    if (child == 0) {
      ::close(from.get());
      confine(mapped, file, to.get());
      limit_steps();
      read_and_exit(read, to.get());
    }
  }
  to.reset();
  Verdict out;
  if (child > 0) {
    out.silent = !receive(from.get(), out.refusal);
    if (out.silent) {
      ::kill(child, SIGKILL);
    }
    while (::waitpid(child, &out.status, 0) < 0 && errno == EINTR) {
    }
  }
  if (child < 0) {
    raise<IoError>("{}: no process for its check can be had", file.path());
  }
  return out;
}

// Why a child gave no verdict.
std::string describe_death(const Verdict& v, const InputFile& file) {
  if (v.silent || v.ended_by(SIGXCPU)) {
    return fmt::format("HDF5 needed more than {} s", kFileSeconds);
  }
  if (v.ended_by(SIGPROF)) {
    return fmt::format("HDF5 needed more than {} s for one object", kStepTime.count());
  }
  if (v.exited_with(kNoMemory)) {
    return fmt::format("HDF5 needed more than {} MiB", memory_for(file) >> 20);
  }
  return WIFSIGNALED(v.status) ? fmt::format("HDF5 ended with signal {}", WTERMSIG(v.status))
                               : fmt::format("HDF5 ended with code {}", WEXITSTATUS(v.status));
}

}  // namespace

void rehearse(const InputFile& file, const std::function<void()>& read) {
  const std::uint64_t left = address_space_left();
  if (left < kMinAddressSpace) {
    raise<IoError>("{}: {} KiB of address space are left, expected {} for its check (ulimit -v)",
                   file.path(), left >> 10, kMinAddressSpace >> 10);
  }
  const Verdict verdict = ask(file, read);
  if (verdict.exited_with(kAccepted) && file.unchanged()) {
    return;
  }
  if (verdict.exited_with(kAccepted)) {
    raise<InputError>("{}: was changed while it was opened, expected a complete file", file.path());
  }
  if (verdict.ended_by(SIGKILL) && !verdict.silent) {
    raise<IoError>("{}: the process that checks it was killed (by the system, for lack of memory?)",
                   file.path());
  }
  const std::string fault =
      verdict.exited_with(kRefused)
          ? verdict.refusal
          : fmt::format(
                "{}: is damaged: {} while reading its structure, expected a readable HDF5 "
                "file",
                file.path(), describe_death(verdict, file));
  if (left < kAmpleAddressSpace) {
    raise<IoError>(
        "{}; {} MiB of address space are left (ulimit -v), and memory may have been short: "
        "expected {}",
        fault, left >> 20, kAmpleAddressSpace >> 20);
  }
  raise<InputError>("{}", fault);
}

}  // namespace kvbench::h5
