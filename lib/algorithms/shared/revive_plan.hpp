// From bytes to the capacities of KVReviver's three stores: Recent, Candidate and Vague.
#pragma once

#include <optional>

#include "algorithms/shared/count_sketch.hpp"
#include "attention/scores.hpp"

namespace kvbench {

/// What becomes of the tokens that are neither in Recent nor in Candidate.
enum class Vague {
  sketch,  ///< a count sketch, from which each is rebuilt
  none,    ///< they are dropped; their share goes to Candidate
  mean,    ///< one token stands for all; what is left of their share goes to Candidate
};

struct ReviveOptions {
  double recent_ratio = 0.45;     ///< of the bytes left after scores, slack and hash words
  double candidate_ratio = 0.45;  ///< the three sum to at most 1
  double vague_ratio = 0.1;       ///< > 0
  Index slack = 16;               ///< tokens that Recent may hold above its budget; not in a batch
  double replace_rate = 1.1;      ///< >= 1, else swapping need not end; not in a batch
  Reduce reduce = Reduce::mean;
  Vague vague = Vague::sketch;  ///< others in a batch only
};

/// Capacities, from a byte budget.
struct RevivePlan {
  /// All tokens fit as they are: then nothing is ever chosen, and neither scores nor a sketch are
  /// kept. The other fields mean nothing.
  bool all_exact = false;
  /// Accumulated scores are state and count: in a stream, not under prefill.
  bool counts_scores = true;
  Index sink = 0;        ///< scores of positions [0, sink) are never asked for
  Index recent = 0;      ///< tokens, without the slack
  Index slack = 0;       ///< tokens
  Index candidates = 0;  ///< tokens
  SketchShape sketch;    ///< no cells where Vague is no sketch
};

/// Bytes beside keys and values.
inline constexpr Index kReviveScoreBytes = 4;  ///< an accumulated score, float32
inline constexpr Index kRevivePlaceBytes = 4;  ///< a Candidate's position, which the sketch hashes
inline constexpr Index kReviveCountBytes = 4;  ///< the mean token's weight, float32

/// Throws InputError where the ratios sum to more than 1.
void check_ratios(const ReviveOptions& options);

/// `tokens`: how many the cache has to hold at the end; `scored`: how many accumulated scores count
/// (0 under prefill), none for tokens that come at once, where no slack is set aside either;
/// `shape.cells` is ignored. A row of the sketch never has more cells than there are tokens. Where
/// Vague is no sketch (at once only) there are no hash words and no positions; the mean token must
/// fit its share.
/// Errors: as check_ratios; Infeasible, with the smallest number of bytes that does, where the
/// vague share is less than one cell per row, or the share of Recent or Candidate is above 0 and
/// less than one token.
RevivePlan plan_revive(const ReviveOptions& options, SketchShape shape, Index tokens,
                       std::optional<Index> scored, Index budget);

}  // namespace kvbench
