// Capacities of KVReviver's stores Recent, Candidate and Vague from a byte budget.
#pragma once

#include <optional>

#include "algorithms/shared/count_sketch.hpp"
#include "attention/scores.hpp"

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
/// share. Throws as check_ratios; throws Infeasible, with the least bytes, if the vague share is
/// below one cell per row, or a positive share of Recent or Candidate is below one token.
RevivePlan plan_revive(const ReviveOptions& options, SketchShape shape, Index tokens,
                       std::optional<Index> scored, Index budget);

}  // namespace kvbench
