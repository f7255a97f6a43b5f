// Attention scores: the softmax weight that each token received from the scoring queries, and the
// choice of the largest scores. Queries are taken in blocks, so no n x n matrix is built.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "attention/backend.hpp"
#include "core/types.hpp"

namespace kvbench {

/// out[g][i], i in [0, n), one vector per query head: the sum over queries at positions
/// [queries.begin, queries.end) of p_ji = softmax_i(s <k_i, q_j>) over the tokens that j sees and
/// the head's sink logit; 0 where no query sees i. Positions before q_start are skipped. The order
/// of summation is fixed. Time O(group m n d), memory O(group n) and a block of queries' weights.
std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries);

/// Element-wise reduction over the group: [group][n] -> [n].
std::vector<double> reduce_group(const std::vector<std::vector<double>>& scores, Reduce reduce);

/// The indices of the `count` largest scores, ascending; of equal scores (-0 equals 0) the lowest
/// indices. No score may be NaN. 0 <= count <= scores.size(). Time and memory O(scores).
std::vector<Index> top_indices(std::span<const double> scores, Index count);

/// Caches scores of one KV head, so that methods that score with the same queries compute them
/// once. Thread-safe.
class ScoreBook {
 public:
  /// Seconds since any fixed moment.
  using Clock = double (*)();

  /// The head and the backend must outlive the book. Without `clock`, no time is charged.
  explicit ScoreBook(const KvHead& head, const Backend& backend = cpu_backend(),
                     Clock clock = nullptr)
      : head_(head), backend_(backend), clock_(clock) {}
  ScoreBook(const ScoreBook&) = delete;
  ScoreBook& operator=(const ScoreBook&) = delete;

  using Scores = std::vector<std::vector<double>>;

  /// The backend's attention_sums(head, queries). The reference is valid for the book's life.
  const Scores& sums(Range queries) const;

  /// The result of `compute`, called once per `key`. The key must determine the result. The
  /// reference is valid for the book's life.
  const Scores& cached(const std::string& key, const std::function<Scores()>& compute) const;

  /// Seconds to add to the time of work on this thread since the last call: the time of computing
  /// the scores that it used, minus the time that it spent in books. So a method is charged for its
  /// scores also where another job computed them. Resets the count.
  static double reset_charged_seconds();

 private:
  using Key = std::tuple<std::string, Index, Index>;
  struct Slot {
    std::once_flag once;
    Scores scores;
    double seconds = 0.0;
  };
  const Scores& once(const Key& key, const std::function<Scores()>& compute) const;
  double now() const { return clock_ == nullptr ? 0.0 : clock_(); }

  const KvHead& head_;
  const Backend& backend_;
  Clock clock_;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::unique_ptr<Slot>> entries_;
};

}  // namespace kvbench
