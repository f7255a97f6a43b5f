// A stream that evicts by attention, in one piece: what decides which token goes at which position.
// A device runs it from the first position to the last and returns its decisions, which a cache on
// the host then follows. Knows no method.
//
// At position j token j joins the tokens held, the group's queries attend to all of them, and if
// more than `kept` lie outside the recent window, the one with the lowest score goes; of equal ones
// the latest. The `protected_recent` latest of those outside the window do not go. Sinks are always
// held and attended; they have no score, and no other rule speaks of them.
#pragma once

#include "attention/scores.hpp"
#include "core/types.hpp"

namespace kvbench {

struct EvictionRules {
  Index kept = 0;              ///< most tokens outside the recent window
  Index window = 0;            ///< the recent window: tokens (j - window, j] at position j
  Index protected_recent = 0;  ///< tokens outside the window that stay, the latest; <= kept
  /// True: a token's score is the sum of its weights, in float32, each step rounded once. False:
  /// its weight from the latest queries alone, in float64.
  bool accumulate = true;
  Reduce reduce = Reduce::mean;  ///< of the weights of a group's query heads
  /// Of how many kept tokens behind the evicted one scores are summed; 0: of none.
  Index after = 0;
  Index sink = 0;  ///< tokens [0, sink) are sinks, also where the window has not lost them yet
};

/// What went at one position.
struct Eviction {
  Index token = -1;        ///< -1: nothing; the rest is then 0
  double score = 0.0;      ///< of the token when it went
  double after_sum = 0.0;  ///< scores of the next `after_count` tokens that stay, ascending
  Index after_count = 0;   ///< min(rules.after, tokens behind it outside the window)
};

}  // namespace kvbench
