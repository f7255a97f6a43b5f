#include "trace/survey.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <limits>
#include <stdexcept>

#include "core/resident.hpp"
#include "trace/hdf5_util.hpp"
#include "trace/survey_walk.hpp"

namespace kvbench::h5 {

namespace {

// Memory beyond what the process has when it begins. HDF5 needs some MB.
constexpr rlim_t kMemory = rlim_t{512} << 20;
// Without memory HDF5 crashes or reports damage that is not there. With less free address space
// than the first bound no survey starts; with less than the second, memory may explain its failure.
constexpr std::uint64_t kMinAddressSpace = std::uint64_t{8} << 20;
constexpr std::uint64_t kAmpleAddressSpace = std::uint64_t{64} << 20;
// The longest answer; a caches file of 100,000 entries needs a third of it.
constexpr std::size_t kMaxAnswer = std::size_t{128} << 20;
// Disks may be slow, and processor time has its own bound.
constexpr int kSilenceMs = 60000;
// Processor time for the whole file.
constexpr rlim_t kFileSeconds = 600;

constexpr std::string_view kExpected = "expected a readable HDF5 file";

// Bytes of address space that may still be mapped.
std::uint64_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, process_bytes().mapped);
}

// Sets the limits of the child process, which has `mapped` bytes of address space. Between fork and
// _exit in a program of several threads only some calls are safe: those made here are, and glibc
// makes the allocations of the walk safe.
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
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  rlimit time{};
  getrlimit(RLIMIT_CPU, &time);
  time.rlim_max = std::min<rlim_t>(time.rlim_max, kFileSeconds);
  time.rlim_cur = time.rlim_max;
  setrlimit(RLIMIT_CPU, &time);
  rlimit memory{};
  getrlimit(RLIMIT_AS, &memory);
  memory.rlim_cur = std::min(memory.rlim_max, mapped + kMemory);
  setrlimit(RLIMIT_AS, &memory);
  prctl(PR_SET_DUMPABLE, 0);
}

// Appends what `from` holds to `answer`. Returns why it stopped before the end, or "".
std::string receive(int from, std::vector<std::uint8_t>& answer) {
  std::vector<std::uint8_t> part(std::size_t{1} << 16);
  for (;;) {
    pollfd waiting{from, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, kSilenceMs);
    if (ready == 0) {
      return fmt::format("HDF5 gave no answer for {} s while surveying it", kSilenceMs / 1000);
    }
    const ssize_t got = ready < 0 ? -1 : ::read(from, part.data(), part.size());
    if (got == 0) {
      return {};
    }
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return "the survey cannot be read";
    }
    if (answer.size() + static_cast<std::size_t>(got) > kMaxAnswer) {
      return fmt::format("it holds more than {} bytes of names, attributes and tables of chunks",
                         kMaxAnswer);
    }
    answer.insert(answer.end(), part.begin(), part.begin() + got);
  }
}

std::string describe_end(int status, std::chrono::microseconds step) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) {
    return fmt::format("HDF5 needed more than {} s for one object while surveying it",
                       std::chrono::duration<double>(step).count());
  }
  if (WIFSIGNALED(status)) {
    return fmt::format("HDF5 ended with signal {} while surveying it", WTERMSIG(status));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) != 0
             ? fmt::format("HDF5 ended with code {} while surveying it", WEXITSTATUS(status))
             : "";
}

struct Reply {
  std::vector<std::uint8_t> answer;
  std::string fault;         // why there is no answer, or empty
  bool out_of_time = false;  // a step took too long
  bool killed = false;       // from outside, probably for lack of memory
};

Reply ask(const InputFile& file, const Request& request, std::chrono::microseconds step) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    raise<IoError>("{}: no pipe for its survey can be had", file.path());
  }
  const rlim_t mapped = process_bytes().mapped;
  pid_t child = -1;
  {
    const Session session;  // no other thread is inside HDF5 at the fork
    child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      confine(mapped, file, ends[1]);
      survey_and_exit(file, request, step, ends[1]);
    }
  }
  ::close(ends[1]);
  Reply out;
  int status = 0;
  if (child > 0) {
    out.fault = receive(ends[0], out.answer);
    if (!out.fault.empty()) {
      ::kill(child, SIGKILL);
    }
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(ends[0]);
  if (child < 0) {
    raise<IoError>("{}: no process for its survey can be had", file.path());
  }
  if (out.fault.empty()) {
    out.fault = describe_end(status, step);
    out.out_of_time = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
    out.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  return out;
}

}  // namespace

Survey survey(const InputFile& file, const Request& request, const StepTimes& times) {
  const std::uint64_t left = address_space_left();
  if (left < kMinAddressSpace) {
    raise<IoError>("{}: {} KiB of address space are left, expected {} for its survey (ulimit -v)",
                   file.path(), left >> 10, kMinAddressSpace >> 10);
  }
  const auto blame_memory = [&](std::string_view fault) {
    if (left < kAmpleAddressSpace) {
      raise<IoError>(
          "{}: {}; {} MiB of address space are left (ulimit -v), and memory may have been short: "
          "expected {}",
          file.path(), fault, left >> 20, kAmpleAddressSpace >> 20);
    }
  };
  Reply reply;
  for (const std::chrono::microseconds step : times) {
    reply = ask(file, request, step);
    if (!reply.out_of_time) {
      break;
    }
  }
  if (!reply.fault.empty()) {
    if (reply.killed) {
      raise<IoError>(
          "{}: the process that surveys it was killed (by the system, for lack of memory?)",
          file.path());
    }
    blame_memory(reply.fault);
    raise<InputError>("{}: is damaged: {}, {}", file.path(), reply.fault, kExpected);
  }
  try {
    return decode_survey(reply.answer);
  } catch (const std::runtime_error& e) {
    blame_memory(e.what());
    raise<InputError>("{}: HDF5 file is truncated or damaged, expected a complete one ({})",
                      file.path(), e.what());
  }
}

}  // namespace kvbench::h5
