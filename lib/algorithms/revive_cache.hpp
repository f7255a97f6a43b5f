// The cache of KVReviver for one KV head: a Recent queue, a Candidate heap by accumulated attention
// and a Vague count sketch, fed token by token; every step attends all tokens, those of the sketch
// as they are rebuilt from it.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithms 1-4.
// Knows nothing of protocols: kvreviver.cpp feeds it. A step costs O(group n d) for the attention
// and O(n) to find what to move; rebuilt keys are kept between steps and renewed only where a cell
// of the token changed.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/count_sketch.hpp"
#include "algorithms/revive_plan.hpp"
#include "attention/revive_stream.hpp"
#include "attention/scores.hpp"
#include "attention/similarity.hpp"

namespace kvbench {

class ReviveCache {
 public:
  /// `head` must outlive the cache. Hash words are read from `words`.
  ReviveCache(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
              const RngStream& words);

  /// What the steps ahead ask of a device. It points into `steps` and the cache.
  ReviveRules rules(std::span<const ReviveStep> steps) const;

  /// From now on the cache does what the log of its rules says and attends nothing. Before the
  /// first arrive(); the steps of those rules must then be taken, in order.
  void follow(ReviveLog log);

  /// Position j has arrived. With `has_query`, its query attends all positions 0 .. j (those that
  /// the cache was given as the cache holds them, all others exactly) and every one of them adds
  /// what it received, reduced over the group's query heads, to its score. Ascending j. `scored`:
  /// whether that of j is ever looked at, and so is state that counts; a sink's is not.
  void arrive(Index j, bool has_query, bool scored = true);

  /// Puts position i, that has arrived, into the cache: Algorithm 3. Ascending i.
  void insert(Index i);

  Compressed view() const;

  // For tests.
  const std::vector<Index>& recent() const { return recent_; }
  const std::vector<Index>& candidates() const { return candidates_; }  ///< ascending
  const std::vector<Index>& vague() const { return vague_; }            ///< ascending
  /// Where a log is followed: after its last step.
  float score(Index i) const { return scores_[static_cast<std::size_t>(i)]; }
  const CountSketch& sketch() const { return sketch_; }
  Index swaps() const { return swaps_; }

 private:
  // A token that came back from the sketch: what was estimated is what it now is.
  struct Pair {
    std::vector<float> k, v;
  };

  void attend(Index j);
  void refresh_keys();
  void set_key(Index i, const float* key);
  void to_vague(Index i);
  void swap(Index out, std::size_t place);
  void swap_back();
  void move_as_logged(Index i);
  std::size_t weakest_candidate() const;
  std::size_t strongest_vague() const;
  void report(Compressed& out) const;

  const KvHead& head_;
  RevivePlan plan_;
  ReviveOptions options_;
  CountSketch sketch_;
  std::vector<Index> recent_;      // oldest first
  std::vector<Index> candidates_;  // ascending
  std::vector<Index> vague_;       // ascending
  std::map<Index, Pair> revived_;  // candidates that were estimated
  std::vector<float> scores_;      // [n] float32, as they count
  Index arrived_ = 0;              // positions that arrive() saw, but sinks: scores that are state
  Index swaps_ = 0;
  bool follows_ = false;
  std::vector<ReviveMove> moves_;  // of the log that is followed
  std::size_t next_move_ = 0;
  // Work space of the attention, rebuildable at any time. Keys as every position is attended now,
  // eight tokens side by side: [n / 8, d, 8].
  AlignedVector<float> panels_;
  Index filled_ = 0;
  std::vector<float> rebuilt_;
  MatrixD queries_, logits_;
};

}  // namespace kvbench
