#include "replay/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

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

}  // namespace

std::string progress_line(std::string_view label, Index done, Index total, double elapsed_s,
                          int width) {
  const double rate = elapsed_s > 0 ? static_cast<double>(done) / elapsed_s : 0.0;
  std::string tail = total > 0 ? fmt::format(" {}/{}", done, total) : fmt::format(" {}", done);
  tail += fmt::format("  {:.3g}/s", rate);
  if (total > 0 && done > 0) {
    tail += fmt::format(
        "  {} left", duration_text(static_cast<double>(std::max<Index>(total - done, 0)) / rate));
  }
  std::string line(label);
  const int room = width - 1 - static_cast<int>(label.size() + tail.size()) - 3;
  if (total > 0 && room >= narrowest_bar) {
    const int cells = std::min(room, widest_bar);
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    const auto full = static_cast<std::size_t>(share * cells);
    line += " [" + std::string(full, '#') +
            std::string(static_cast<std::size_t>(cells) - full, '.') + "]";
  }
  line += tail;
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(width - 1, 0))));
  return line;
}

Progress::Progress(Index total, std::string label, int fd)
    : total_(total),
      label_(std::move(label)),
      fd_(fd),
      visible_(is_terminal(fd)),
      start_(Clock::now()),
      drawn_at_(start_ - interval) {}

Progress::~Progress() {
  finish();
}

void Progress::tick(Index n) {
  const std::scoped_lock guard(mutex_);
  done_ += n;
  const auto now = Clock::now();
  if (visible_ && !finished_ && now - drawn_at_ >= interval) {
    draw(now);
  }
}

void Progress::message(std::string_view text) {
  const std::scoped_lock guard(mutex_);
  clear();
  put(fmt::format("{}\n", text));
  if (visible_ && !finished_) {
    draw(Clock::now());
  }
}

void Progress::finish() {
  const std::scoped_lock guard(mutex_);
  clear();
  finished_ = true;
}

Index Progress::done() const {
  const std::scoped_lock guard(mutex_);
  return done_;
}

void Progress::draw(Clock::time_point now) {
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  put(fmt::format("{}{}", clear_line,
                  progress_line(label_, done_, total_, elapsed, terminal_width(fd_))));
  drawn_at_ = now;
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) {
    put(clear_line);
    drawn_ = false;
  }
}

void Progress::put(std::string_view text) const {
  // A terminal that went away must not stop a run.
  [[maybe_unused]] const ssize_t n = ::write(fd_, text.data(), text.size());
}

}  // namespace kvbench
