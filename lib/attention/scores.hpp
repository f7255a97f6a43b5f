// Attention scores that query-aware methods select by: how much softmax weight tokens received from
// the scoring queries, each over its own causal past. Two passes, O(n) extra memory per query head;
// never an n x n matrix. Knows no method.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

class DeviceHead;

/// How scores of a group's query heads become one score per token.
enum class Reduce { mean, max, sum };

/// out[g][i], i in [0, n): sum over queries at positions [queries.begin, queries.end) of
/// p_ji = softmax_i(s <k_i, q_j>) over i <= j; 0 where no query sees i. One vector per query head.
/// Positions before q_start are skipped (the trace holds no query there). float64; the order of
/// summation is fixed. Time O(group m n d), memory O(group n). With `device`, which holds this
/// head, they are computed there: the same to rounding.
std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries,
                                                const DeviceHead* device = nullptr);

/// Element-wise reduction over the group: [group][n] -> [n].
std::vector<double> reduce_group(const std::vector<std::vector<double>>& scores, Reduce reduce);

/// Memo of attention_sums for one KV head, shared by all jobs on it: methods that score with the
/// same queries pay once. Thread-safe.
class ScoreBook {
 public:
  /// `device`, where not null, holds this head and outlives the book.
  explicit ScoreBook(const KvHead& head, const DeviceHead* device = nullptr)
      : head_(head), device_(device) {}
  ScoreBook(const ScoreBook&) = delete;
  ScoreBook& operator=(const ScoreBook&) = delete;

  /// attention_sums(head, queries, device). The reference stays valid for the book's life.
  const std::vector<std::vector<double>>& sums(Range queries) const;

  /// Correction to the time of a piece of work on this thread that asked books for sums, since the
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
  const KvHead& head_;
  const DeviceHead* device_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<Index, Index>, std::unique_ptr<Entry>> entries_;
};

}  // namespace kvbench
