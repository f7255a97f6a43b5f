// A stream that retains tokens by facility location and attention, in one piece: what decides which
// token leaves at which position. A device runs it from the first position to the last and returns
// its decisions, which a cache on the host then follows. Knows no method.
//
// At position j the token that leaves the recent window joins the retained ones, S', the group's
// queries at j attend to sinks and S' and add their weights within both to the float32 scores of
// S', and if S' has more than `kept` tokens, the one leaves whose removal costs
//   lambda (f(S') - f(S'-i)) / f(S') + (1 - lambda) (c(S') - c(S'-i)) / c(S')
// least, of equal ones the earliest: f facility location with ground set S'
// (facility_location.hpp), c(A) = log(1 + sum of the scores in A). A part whose f or c is 0 is left
// out; without f the cost is the score itself.
#pragma once

#include "attention/facility_location.hpp"
#include "attention/scores.hpp"
#include "core/types.hpp"

namespace kvbench {

struct RetentionRules {
  Index kept = 0;       ///< most tokens outside the recent window
  Index window = 0;     ///< the recent window: tokens (j - window, j] at position j
  double lambda = 0.5;  ///< in [0, 1]; 0: no f, 1: no scores
  Similarity kind = Similarity::relu;
  Reduce reduce = Reduce::mean;  ///< of the weights of a group's query heads
  Index sink = 0;  ///< tokens [0, sink) are sinks: they are in every softmax and in no S'
};

}  // namespace kvbench
