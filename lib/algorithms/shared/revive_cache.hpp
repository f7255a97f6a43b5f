// The cache of KVReviver for one KV head: Recent, the newest tokens, Candidate, those of most
// accumulated attention, and Vague, what stands for all others.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithms 1-4.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/shared/count_sketch.hpp"
#include "algorithms/shared/revive_plan.hpp"
#include "attention/streams.hpp"

namespace kvbench {

/// Fed token by token; every step attends all tokens, those of the sketch as they are rebuilt from
/// it. What moves is the stream's to decide (streams/revival.hpp); the cache follows with keys and
/// values.
class ReviveCache final : public StreamCache {
 public:
  /// `head` must outlive the cache. Hash words are read from `words`. `steps`: those to be taken,
  /// in order; the CPU does without them.
  ReviveCache(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
              const RngStream& words, const Backend& backend = cpu_backend(),
              std::span<const ReviveStep> steps = {});

  /// A position has arrived. Its query, where it has one, attends all positions 0 .. j (those that
  /// the cache was given as the cache holds them, all others exactly) and every one of them adds
  /// what it received, reduced over the group's query heads, to its score. Then the token to
  /// insert, if there is one, is put into the cache: Algorithm 3.
  void step(const ReviveStep& step);
  void append(Index j, Index leaving) override { step({j, leaving, j >= head_.q_start()}); }

  Compressed view() const override;

  // For tests.
  const std::vector<Index>& recent() const { return recent_; }
  const std::vector<Index>& candidates() const { return candidates_; }  ///< ascending
  const std::vector<Index>& vague() const { return vague_; }            ///< ascending
  /// On a device: after the last step. Not where all is exact.
  float score(Index i) const { return stream_->scores()[i]; }
  const CountSketch& sketch() const { return sketch_; }
  Index swaps() const { return swaps_; }

 private:
  // A token that came back from the sketch: what was estimated is what it now is.
  struct Pair {
    std::vector<float> k, v;
  };

  void insert(Index i);
  void to_vague(Index i);
  void swap(Index out, Index in);

  const KvHead& head_;
  RevivePlan plan_;
  CountSketch sketch_;
  std::vector<Index> recent_;      // oldest first
  std::vector<Index> candidates_;  // ascending
  std::vector<Index> vague_;       // ascending
  std::map<Index, Pair> revived_;  // candidates that were estimated
  Index arrived_ = 0;              // positions that step() saw, but sinks: scores that are state
  Index swaps_ = 0;
  std::unique_ptr<ReviveStream> stream_;  // none where all is exact
};

/// One Compress of many tokens at once ([1], Algorithm 3, whose new tokens come in bulk). `scores`
/// [task.count()]: accumulated attention; not all is exact by the plan. Candidates are the heaviest
/// of those that are not Recent, ties to the lowest position; the rest is Vague's:
///   sketch  every cell is the float64 sum of its tokens, ascending by position, rounded once; each
///           token is then rebuilt from it. Hash words are those of the task's stream `sketch`
///   none    dropped
///   mean    one token: mean key, mean value (float64, rounded once), their number as weight
/// Time O(m (d + dv) rows), memory O(m (d + dv)).
Compressed revive_batch(const Task& task, const ReviveOptions& options, const RevivePlan& plan,
                        std::span<const double> scores);

}  // namespace kvbench
