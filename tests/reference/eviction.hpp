// H2O's greedy eviction as a stream, every step from its definition: softmax over what is held,
// sums, the lightest goes.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

struct EvictionReference {
  Index kept = 0;        ///< tokens outside the window at most
  Index heavy = 0;       ///< of which heavy hitters
  Index window = 0;      ///< most recent tokens that are never evicted
  bool largest = false;  ///< group reduction: the largest weight instead of the mean
  Index sink = 0;        ///< first tokens: attended from their arrival on, and nothing else

  std::map<Index, float> score;  ///< of every token held, the window's too; sinks have none

  /// Position j arrives; the evicted token and its score, or -1.
  std::pair<Index, float> step(const kvbench::KvHead& head, Index j);
  /// Tokens held outside the window, given that j came last.
  std::vector<Index> outside(Index j) const;
};

}  // namespace reference
