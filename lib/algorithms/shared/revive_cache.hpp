// The cache of KVReviver for one KV head: Recent (newest tokens), Candidate (most accumulated
// attention) and Vague (stands for all others); their
// capacities from a byte budget.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithms 1-4.
#pragma once

#include "algorithms/contract.hpp"
#include "algorithms/shared/count_sketch.hpp"
#include "attention/scores.hpp"
#include "attention/streams.hpp"

namespace kvbench {

/// What replaces tokens outside Recent and Candidate.
enum class Vague {
  sketch,  ///< a count sketch that rebuilds each
  none,    ///< dropped; their share goes to Candidate
  mean,    ///< one mean token; the rest of their share goes to Candidate
};

struct ReviveOptions {
  double recent_ratio = 0.45;     ///< of the bytes left after scores, slack and hash words
  double candidate_ratio = 0.45;  ///< the three sum to at most 1
  double vague_ratio = 0.1;       ///< > 0
  Index slack = 16;               ///< tokens that Recent may exceed its capacity by; not in a batch
  double replace_rate = 1.1;      ///< >= 1, so that swapping ends; not in a batch
  Reduce reduce = Reduce::mean;
  Vague vague = Vague::sketch;  ///< other values in a batch only
};

struct RevivePlan {
  /// All tokens fit; no scores and no sketch are kept, and the other fields are unused.
  bool all_exact = false;
  /// Accumulated scores count as bytes: in a stream, not under prefill.
  bool counts_scores = true;
  Index sink = 0;        ///< positions [0, sink) have no scores
  Index recent = 0;      ///< tokens, without slack
  Index slack = 0;       ///< tokens
  Index candidates = 0;  ///< tokens
  SketchShape sketch;    ///< no cells if Vague is not a sketch
};

/// Bytes beside keys and values.
inline constexpr Index kReviveScoreBytes = 4;  ///< an accumulated score, float32
inline constexpr Index kRevivePlaceBytes = 4;  ///< a Candidate's position, which the sketch hashes
inline constexpr Index kReviveCountBytes = 4;  ///< the mean token's weight, float32

/// Throws InputError if the ratios sum to more than 1.
void check_ratios(const ReviveOptions& options);

/// `tokens`: tokens to hold at the end. `scored`: accumulated scores that count as bytes; none: all
/// tokens come at once, without slack. `shape.cells` is ignored; a sketch row has at most `tokens`
/// cells. Without a sketch there are no hash words and positions, and the mean token must fit its
/// share. The ratios are those of check_ratios. Throws Infeasible, with the least bytes, if the
/// vague share is below one cell per row, or a positive share of Recent or Candidate is below one
/// token.
RevivePlan plan_revive(const ReviveOptions& options, SketchShape shape, Index tokens,
                       std::optional<Index> scored, Index budget);

/// Every step attends all tokens, those in the sketch as rebuilt. The stream decides what moves
/// (streams/revival.hpp).
class ReviveCache final : public StreamCache {
 public:
  /// `head` must outlive the cache. `words`: hash words. `steps`: all steps in order, required by
  /// devices only.
  ReviveCache(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
              const RngStream& words, const Backend& backend = cpu_backend(),
              std::span<const ReviveStep> steps = {});

  /// The position's query, if any, attends 0 .. j; each token adds its attention, reduced over the
  /// group, to its score. Then the step's token, if any, is inserted (Algorithm 3).
  void step(const ReviveStep& step);
  void append(Index j, Index leaving) override { step({j, leaving, j >= head_.q_start()}); }

  Compressed view() const override;

  // For tests.
  const std::vector<Index>& recent() const { return recent_; }
  const std::vector<Index>& candidates() const { return candidates_; }  ///< ascending
  const std::vector<Index>& vague() const { return vague_; }            ///< ascending
  /// On a device, valid after the last step. Not available if all is exact.
  float score(Index i) const { return stream_->scores()[i]; }
  const CountSketch& sketch() const { return sketch_; }
  Index swaps() const { return swaps_; }

 private:
  // An estimated token.
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
  std::map<Index, Pair> revived_;  // candidates rebuilt from the sketch
  Index arrived_ = 0;              // positions with a score: all but sinks
  Index swaps_ = 0;
  std::unique_ptr<ReviveStream> stream_;  // null if all is exact
};

/// Compresses all tokens at once ([1], Algorithm 3, in bulk). `scores` [task.count()]: accumulated
/// attention. The plan must not be all_exact. Candidates are the heaviest tokens outside Recent,
/// ties to the lowest position. Vague holds the rest:
///   sketch  each cell is the float64 sum of its tokens, by position, rounded once; tokens are
///           rebuilt from it. Hash words are those of the task's stream `sketch`
///   none    dropped
///   mean    one token: mean key, mean value (float64, rounded once), weighted by their number
/// Time O(m (d + dv) rows), memory O(m (d + dv)).
Compressed revive_batch(const Task& task, const ReviveOptions& options, const RevivePlan& plan,
                        std::span<const double> scores);

}  // namespace kvbench
