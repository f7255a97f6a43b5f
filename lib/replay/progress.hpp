// How far a run is, on stderr: at a terminal a bar with count, rate and time left; in a file or a
// pipe, or when TERM is `dumb`, a plain line every minute.
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
  using Clock = std::chrono::steady_clock;

  /// `total` steps, 0 when unknown, of this `unit` ("rows"); `label` stands before the bar. `fd` is
  /// where to draw. Where it is no terminal a tick prints a line once `line_interval` has passed
  /// since the last, so a run that is shorter prints none.
  Progress(Index total, std::string label, std::string unit, int fd = 2,
           Clock::duration line_interval = std::chrono::minutes{1});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `n` more steps are done.
  void tick(Index n = 1);

  /// `n` steps had been done by an earlier run: they say nothing of the time left.
  void skip(Index n);

  /// One line of text above the bar. It is written to a file or pipe as well: a warning must not
  /// depend on whether somebody watches.
  void message(std::string_view text);

  /// Clears the bar's line, or prints the last of the plain ones where there are some; later ticks
  /// draw nothing. The destructor does the same.
  void finish();

  Index done() const;

 private:
  void draw(Clock::time_point now);
  void print_line(Clock::time_point now);
  void clear();
  void put(std::string_view text) const;

  const Index total_;
  const std::string label_;
  const std::string unit_;
  const int fd_;
  const Clock::duration line_interval_;
  const bool visible_;
  const Clock::time_point start_;
  mutable std::mutex mutex_;
  Clock::time_point drawn_at_;
  Clock::time_point line_at_;
  Index done_ = 0;
  Index skipped_ = 0;
  Index lines_ = 0;  // plain ones
  bool drawn_ = false;
  bool finished_ = false;
};

/// How much is done; `skipped` of it by an earlier run, the rest in `elapsed_s` seconds.
struct Done {
  Index done = 0;
  Index total = 0;  ///< 0: unknown
  double elapsed_s = 0.0;
  Index skipped = 0;

  /// Steps per second; 0 where nothing is known.
  double rate() const;
};

/// The bar's text for a terminal of `width` columns; at most width - 1 characters, so that no
/// terminal wraps it.
std::string progress_line(std::string_view label, const Done& done, int width);

/// "kvbench: replay: 12%, 3456 of 28800 rows, 3 min, 21 min left".
std::string plain_progress(std::string_view label, std::string_view unit, const Done& done);

}  // namespace kvbench
