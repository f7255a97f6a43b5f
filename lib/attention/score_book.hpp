// The attention sums of one KV head, computed once for all jobs on it. Knows no method.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "attention/backend.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Memo of attention_sums and other scores of one KV head: methods that score with the same queries
/// pay once.
/// Thread-safe.
class ScoreBook {
 public:
  /// Seconds since any fixed moment.
  using Clock = double (*)();

  /// The head and the backend must outlive the book. `clock`: what charges are measured by; null:
  /// nothing is charged.
  explicit ScoreBook(const KvHead& head, const Backend& backend = cpu_backend(),
                     Clock clock = nullptr)
      : head_(head), backend_(backend), clock_(clock) {}
  ScoreBook(const ScoreBook&) = delete;
  ScoreBook& operator=(const ScoreBook&) = delete;

  /// The backend's attention_sums(head, queries). The reference stays valid for the book's life.
  const std::vector<std::vector<double>>& sums(Range queries) const;

  using Scores = std::vector<std::vector<double>>;
  /// What `compute` gives, computed once for each `name`, which says all that it depends on.
  const Scores& named(const std::string& name, const std::function<Scores()>& compute) const;

  /// Correction to the time of some work on this thread that asked books for sums, since the
  /// last call: what computing them takes, less what this thread spent asking. Added to the work's
  /// own time it charges every method for the scores that it uses, whether they were computed for
  /// it or, earlier, for another. Sets the count back to 0.
  static double take_charged_seconds();

 private:
  struct Entry {
    std::once_flag once;
    std::vector<std::vector<double>> sums;
    double seconds = 0.0;
  };
  const Scores& once(const std::tuple<std::string, Index, Index>& key,
                     const std::function<Scores()>& compute) const;
  double now() const { return clock_ == nullptr ? 0.0 : clock_(); }

  const KvHead& head_;
  const Backend& backend_;
  Clock clock_;
  mutable std::mutex mutex_;
  mutable std::map<std::tuple<std::string, Index, Index>, std::unique_ptr<Entry>> entries_;
};

}  // namespace kvbench
