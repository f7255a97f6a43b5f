// Slow reference of CAKE's scores and of what a layer's preference is made of.
#pragma once

#include "reference/selection.hpp"

namespace reference {

struct Cake {
  Vec scores;         // of the tokens
  Real entropy = 0;   // over tokens, queries [begin, end) and the group's heads
  Real variance = 0;  // over the queries, summed over tokens and heads
};

Cake cake(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin, Index end,
          Real gamma, Index kernel, ReferenceReduce reduce);

}  // namespace reference
