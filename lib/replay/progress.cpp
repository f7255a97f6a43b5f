#include "replay/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/files.hpp"

namespace kvbench {
namespace {

constexpr int default_width = 80;
constexpr int widest_bar = 30;
constexpr int narrowest_bar = 5;
constexpr std::chrono::milliseconds interval{100};
constexpr std::string_view clear_line = "\r\x1b[2K";

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : default_width;
}

std::string duration_text(double seconds) {
  if (!(seconds < 100.0 * 3600.0)) {
    return "> 99 h";
  }
  const auto s = static_cast<Index>(std::llround(seconds));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

// For plain lines, with the digits of an estimate.
std::string rough_text(double seconds) {
  return seconds < 90.0            ? fmt::format("{:.0f} s", seconds)
         : seconds < 90.0 * 60.0   ? fmt::format("{:.0f} min", seconds / 60.0)
         : seconds < 48.0 * 3600.0 ? fmt::format("{:.1f} h", seconds / 3600.0)
                                   : fmt::format("{:.1f} d", seconds / 86400.0);
}

// Seconds; negative if unknown.
double time_left(const Done& d) {
  return d.rate() > 0.0 ? static_cast<double>(std::max<Index>(d.total - d.done, 0)) / d.rate()
                        : -1.0;
}

}  // namespace

double Done::rate() const {
  return elapsed_s > 0.0 ? static_cast<double>(done - skipped) / elapsed_s : 0.0;
}

std::string plain_progress(std::string_view label, std::string_view unit, const Done& d) {
  std::string line = fmt::format("kvbench: {}: {}%, {} of {} {}, {}", label, 100 * d.done / d.total,
                                 d.done, d.total, unit, rough_text(d.elapsed_s));
  if (const double left = time_left(d); left >= 0.0) {
    line += fmt::format(", {} left", rough_text(left));
  }
  return line;
}

std::string progress_line(std::string_view label, const Done& d, int width) {
  const auto& [done, total, elapsed_s, skipped] = d;
  std::string tail = fmt::format(" {}/{}  {:.3g}/s", done, total, d.rate());
  if (const double left = time_left(d); left >= 0.0) {
    tail += fmt::format("  {} left", duration_text(left));
  }
  std::string line(label);
  const int available = width - 1 - static_cast<int>(label.size() + tail.size()) - 3;
  if (available >= narrowest_bar) {
    const int cells = std::min(available, widest_bar);
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    const auto full = static_cast<std::size_t>(share * cells);
    line += " [" + std::string(full, '#') +
            std::string(static_cast<std::size_t>(cells) - full, '.') + "]";
  }
  line += tail;
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(width - 1, 0))));
  return line;
}

Progress::Progress(Index total, std::string label, std::string unit, int fd,
                   Clock::duration line_interval)
    : total_(total),
      label_(std::move(label)),
      unit_(std::move(unit)),
      fd_(fd),
      line_interval_(line_interval),
      visible_(is_terminal(fd)),
      start_(Clock::now()),
      said_at_(visible_ ? start_ - interval : start_) {}

Progress::~Progress() {
  if (said_ && visible_) {
    write_message(fd_, clear_line);
  } else if (said_) {
    print_line(Clock::now());
  }
}

void Progress::tick(Index n) {
  const std::scoped_lock guard(mutex_);
  done_ += n;
  const auto now = Clock::now();
  if (now - said_at_ < (visible_ ? Clock::duration(interval) : line_interval_)) {
    return;
  }
  if (visible_) {
    write_message(fd_, fmt::format("{}{}", clear_line,
                                   progress_line(label_, state(now), terminal_width(fd_))));
  } else {
    print_line(now);
  }
  said_at_ = now;
  said_ = true;
}

void Progress::skip(Index n) {
  const std::scoped_lock guard(mutex_);
  done_ += n;
  skipped_ += n;
}

Done Progress::state(Clock::time_point now) const {
  return {done_, total_, std::chrono::duration<double>(now - start_).count(), skipped_};
}

void Progress::print_line(Clock::time_point now) {
  write_message(fd_, plain_progress(label_, unit_, state(now)) + "\n");
}

}  // namespace kvbench
