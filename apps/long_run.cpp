#include "long_run.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <semaphore.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/parse_number.hpp"
#include "core/resident.hpp"
#include "core/temporary_files.hpp"
#include "exit_code.hpp"
#include "parse_enum.hpp"

namespace kvbench {
namespace {

constexpr std::chrono::milliseconds kGrace{1500};
constexpr int kOwnPages = 1 << 16;  // bytes; larger blocks return to the system when freed

std::atomic<bool> stop_requested = false;
sem_t signalled;  // posted by the signal handler
sem_t waiting;    // posted when end_after_signal has started

struct Ending {
  std::mutex mutex;
  std::string message = "interrupted";
  std::chrono::milliseconds grace{0};
  std::function<void()> before;
};

// Never destroyed: end_after_signal may need it while the process ends.
Ending& ending() {
  static auto* one = new Ending;
  return *one;
}

extern "C" void request_stop(int signal) {
  if (stop_requested.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  sem_post(&signalled);
}

// Ends the process after the grace period, since a job may run for minutes and methods do not check
// for a stop. Written rows stay whole; temporary files are removed.
void end_after_signal() {
  sem_post(&waiting);
  while (sem_wait(&signalled) != 0) {  // a signal
  }
  Ending& end = ending();
  std::unique_lock lock(end.mutex);
  const std::chrono::milliseconds grace = end.grace;
  lock.unlock();
  std::this_thread::sleep_for(grace);
  lock.lock();
  const std::string line =
      fmt::format("{}{}\n", ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[2K" : "", end.message);
  if (end.before) {
    try {
      end.before();
    } catch (const std::exception&) {  // the log keeps what could not be written
    }
  }
  block_writes();
  remove_temporaries();
  [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(kExitInterrupted);
}

std::uint64_t set_memory_limit(const std::string& text) {
  constexpr std::string_view units = "KMGT";
  const std::size_t unit = text.empty() ? units.npos : units.find(text.back());
  const std::string_view number =
      std::string_view(text).substr(0, text.size() - (unit < 4 ? 1 : 0));
  const double factor = unit < 4 ? std::exp2(10.0 * static_cast<double>(unit + 1)) : 1.0;
  double x = 0.0;
  if (!parse_number(number, x) || !(x * factor >= 1.0) || !(x * factor < 0x1p60)) {
    throw InputError(fmt::format(
        "--memory-limit: got '{}', expected bytes, or a number with K, M, G or T (powers of 1024)",
        text));
  }
  // Otherwise glibc raises this threshold to the largest block freed and keeps smaller blocks: tens
  // of MB that no estimate counts.
  mallopt(M_MMAP_THRESHOLD, kOwnPages);
  return static_cast<std::uint64_t>(x * factor);
}

}  // namespace

CLI::Option* memory_option(CLI::App& app, std::uint64_t& bytes, const char* more) {
  return text_option(
      app, "--memory-limit", [&bytes](const std::string& text) { bytes = set_memory_limit(text); },
      fmt::format("Memory limit of the program in bytes, or with a suffix as in 8G (K, M, G, T: "
                  "powers of 1024). It may reduce the number of threads{}",
                  more),
      "BYTES");
}

std::uint64_t program_bytes() {
  constexpr std::uint64_t kLater = std::uint64_t{4}
                                   << 20;  // pages of libraries that are not loaded yet
  return process_bytes().resident + kLater;
}

void end_on_signals() {
  ending();
  sem_init(&signalled, 0, 0);
  sem_init(&waiting, 0, 0);
  std::thread(end_after_signal).detach();
  // Wait for the thread before any fork (lib/trace/canary.cpp): a starting thread may hold runtime
  // locks, which would stay locked in the child.
  while (sem_wait(&waiting) != 0) {  // a signal
  }
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
}

const std::atomic<bool>& stop_on_signals(std::string message) {
  const std::lock_guard lock(ending().mutex);
  ending().message = std::move(message);
  ending().grace = kGrace;
  return stop_requested;
}

void call_before_end(std::function<void()> function) {
  const std::lock_guard lock(ending().mutex);
  ending().before = std::move(function);
}

void expect_unchanged(const std::vector<std::string>& traces, const std::string& out) {
  if (!traces.empty()) {
    throw InputError(
        fmt::format("{}: was written to during the run, expected unchanged traces; the rows of {} "
                    "may mix old and new contents and will be rejected",
                    fmt::join(traces, ", "), out));
  }
}

}  // namespace kvbench
