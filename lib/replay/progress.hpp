// A progress bar on stderr: count, rate and time left. Only at a terminal; nothing is drawn into a
// file or a pipe, or when TERM is `dumb`.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

#include "core/types.hpp"

namespace kvbench {

/// Thread-safe. Draws at most ten times a second and never wider than the terminal.
class Progress {
 public:
  /// `total` steps, 0 when unknown; `label` stands before the bar. `fd` is the terminal to draw on.
  Progress(Index total, std::string label, int fd = 2);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `n` more steps are done.
  void tick(Index n = 1);

  /// One line of text above the bar. It is written to a file or pipe as well: a warning must not
  /// depend on whether somebody watches.
  void message(std::string_view text);

  /// Clears the bar's line; later ticks draw nothing. The destructor does the same.
  void finish();

  Index done() const;

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now);
  void clear();
  void put(std::string_view text) const;

  const Index total_;
  const std::string label_;
  const int fd_;
  const bool visible_;
  const Clock::time_point start_;
  mutable std::mutex mutex_;
  Clock::time_point drawn_at_;
  Index done_ = 0;
  bool drawn_ = false;
  bool finished_ = false;
};

/// The bar's text for a terminal of `width` columns, `elapsed_s` seconds after the start; at most
/// width - 1 characters, so that no terminal wraps it.
std::string progress_line(std::string_view label, Index done, Index total, double elapsed_s,
                          int width);

}  // namespace kvbench
