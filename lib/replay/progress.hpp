// Progress of a run on stderr: a line with count and time left, rewritten in place at a terminal;
// otherwise, or if TERM is `dumb`, printed every minute.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

#include "core/types.hpp"

namespace kvbench {

/// State of a run: `skipped` of the `done` steps by an earlier run, the others in `elapsed_s`
/// seconds.
struct Done {
  Index done = 0;
  Index total = 0;
  double elapsed_s = 0.0;
  Index skipped = 0;
};

/// Thread-safe. Draws at most ten times a second and never wider than the terminal.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `total`: steps, at least 1. `label`: of the run. `unit`: name of the steps ("rows").
  /// `line_interval`: between lines that are not at a terminal, and before the first.
  Progress(Index total, std::string label, std::string unit, int fd = 2,
           Clock::duration line_interval = std::chrono::minutes{1});
  /// Clears the line at a terminal; otherwise prints a last line if there were others.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void tick(Index n = 1);

  /// Counts `n` steps of an earlier run. They do not affect the rate.
  void skip(Index n);

 private:
  void print(Clock::time_point now);

  const Index total_;
  const std::string label_;
  const std::string unit_;
  const int fd_;
  const Clock::duration line_interval_;
  const bool terminal_;
  const Clock::time_point start_;
  std::mutex mutex_;
  Clock::time_point said_at_;  // the last line
  Index done_ = 0;
  Index skipped_ = 0;
  bool said_ = false;
};

/// "kvbench: replay: 12%, 3456 of 28800 rows, 3 min, 21 min left".
std::string progress_line(std::string_view label, std::string_view unit, const Done& done);

}  // namespace kvbench
