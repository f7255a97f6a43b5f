#include "replay/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/files.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kDefaultWidth = 80;
constexpr std::chrono::milliseconds kInterval{100};  // at a terminal
constexpr std::string_view kClearLine = "\r\x1b[2K";

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

std::size_t terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultWidth;
}

// With the digits of an estimate.
std::string duration_text(double seconds) {
  return seconds < 90.0            ? fmt::format("{:.0f} s", seconds)
         : seconds < 90.0 * 60.0   ? fmt::format("{:.0f} min", seconds / 60.0)
         : seconds < 48.0 * 3600.0 ? fmt::format("{:.1f} h", seconds / 3600.0)
                                   : fmt::format("{:.1f} d", seconds / 86400.0);
}

}  // namespace

std::string progress_line(std::string_view label, std::string_view unit, const Done& d) {
  std::string line = fmt::format("kvbench: {}: {}%, {} of {} {}, {}", label, 100 * d.done / d.total,
                                 d.done, d.total, unit, duration_text(d.elapsed_s));
  if (d.done > d.skipped && d.elapsed_s > 0.0) {
    const double rate = static_cast<double>(d.done - d.skipped) / d.elapsed_s;
    const auto left = static_cast<double>(std::max<Index>(d.total - d.done, 0));
    line += fmt::format(", {} left", duration_text(left / rate));
  }
  return line;
}

Progress::Progress(Index total, std::string label, std::string unit, int fd,
                   Clock::duration line_interval)
    : total_(total),
      label_(std::move(label)),
      unit_(std::move(unit)),
      fd_(fd),
      line_interval_(line_interval),
      terminal_(is_terminal(fd)),
      start_(Clock::now()),
      said_at_(terminal_ ? start_ - kInterval : start_) {}

Progress::~Progress() {
  if (said_ && terminal_) {
    write_message(fd_, kClearLine);
  } else if (said_) {
    print(Clock::now());
  }
}

void Progress::tick(Index n) {
  const std::scoped_lock guard(mutex_);
  done_ += n;
  const auto now = Clock::now();
  if (now - said_at_ >= (terminal_ ? Clock::duration(kInterval) : line_interval_)) {
    print(now);
    said_at_ = now;
    said_ = true;
  }
}

void Progress::skip(Index n) {
  const std::scoped_lock guard(mutex_);
  done_ += n;
  skipped_ += n;
}

void Progress::print(Clock::time_point now) {
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  std::string line = progress_line(label_, unit_, {done_, total_, elapsed_s, skipped_});
  if (terminal_) {  // in the last column it would wrap
    line.resize(std::min(line.size(), terminal_width(fd_) - 1));
    write_message(fd_, fmt::format("{}{}", kClearLine, line));
  } else {
    write_message(fd_, line + "\n");
  }
}

}  // namespace kvbench
