#include "long_run.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <semaphore.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/resident.hpp"
#include "core/temporary_files.hpp"
#include "exit_code.hpp"

namespace kvbench {
namespace {

constexpr std::chrono::milliseconds kPatience{1500};
constexpr int kOwnPages = 1 << 16;  // bytes of a block that goes back when it is freed

std::atomic<bool> stop_requested = false;
sem_t signalled;  // what a handler may post
sem_t waiting;    // the thread below has begun

// How the process ends after a signal.
struct Ending {
  std::mutex mutex;
  std::string last_words = "interrupted";
  std::chrono::milliseconds patience{0};
};

// Never destroyed: the thread below may need it while the process ends.
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

// A job may run for minutes, and no method asks whether it should stop. What it would have written
// is lost, as in a kill; what is written is whole, and what is unfinished goes.
void end_after_signal() {
  sem_post(&waiting);
  while (sem_wait(&signalled) != 0) {  // a signal
  }
  Ending& end = ending();
  std::unique_lock lock(end.mutex);
  const std::chrono::milliseconds patience = end.patience;
  lock.unlock();
  std::this_thread::sleep_for(patience);
  lock.lock();
  const std::string line =
      fmt::format("{}{}\n", ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[2K" : "", end.last_words);
  hold_writes();
  remove_temporaries();
  [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(kExitInterrupted);
}

}  // namespace

std::uint64_t set_memory_limit(const std::string& text) {
  double x = 0.0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, x);
  const std::string unit(rest, end);
  double factor = 0.0;
  for (const auto& [name, value] :
       {std::pair{"", 1.0}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}}) {
    factor = unit == name ? value : factor;
  }
  if (error != std::errc() || factor == 0.0 || !(x > 0.0) || !(x * factor < 0x1p60)) {
    throw InputError(
        fmt::format("--memory-limit: got '{}', expected bytes, or a number with K, M, G or T "
                    "(powers of 1024)",
                    text));
  }
  // Otherwise glibc raises the size from which a block has pages of its own to that of the largest
  // block freed, and keeps smaller ones: some tens of MB that no method's figure counts.
  mallopt(M_MMAP_THRESHOLD, kOwnPages);
  return static_cast<std::uint64_t>(x * factor);
}

std::uint64_t program_bytes() {
  constexpr std::uint64_t kLater = std::uint64_t{4}
                                   << 20;  // libraries' pages that are not used yet
  return process_bytes().resident + kLater;
}

void end_on_signals() {
  ending();
  sem_init(&signalled, 0, 0);
  sem_init(&waiting, 0, 0);
  std::thread(end_after_signal).detach();
  // A trace may be opened next, by a process that is forked (lib/trace/survey.cpp). A thread that
  // just begins may hold locks of its runtime, of AddressSanitizer's allocator say, and there they
  // would stay locked.
  while (sem_wait(&waiting) != 0) {  // a signal
  }
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
}

const std::atomic<bool>& stop_on_signals(std::string last_words) {
  const std::lock_guard lock(ending().mutex);
  ending().last_words = std::move(last_words);
  ending().patience = kPatience;
  return stop_requested;
}

void expect_unchanged(const std::vector<std::string>& traces, const std::string& out) {
  if (!traces.empty()) {
    throw InputError(fmt::format(
        "{}: was written to during the run; the rows of {} may be of neither contents, and are "
        "refused from now on; expected a trace that nobody writes",
        fmt::join(traces, ", "), out));
  }
}

}  // namespace kvbench
