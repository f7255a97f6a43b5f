// How a query head spreads its attention over the tokens.
#pragma once

#include "core/types.hpp"

namespace kvbench {

inline constexpr Index kFactQueries = 256;  ///< last queries of the prompt, at most
inline constexpr Index kFirstTokens = 16;   ///< attention sinks, as in a replay by default
inline constexpr Index kNearTokens = 256;   ///< a query's own token and those before it
inline constexpr double kHeavyMass = 0.9;   ///< share of the attention on tokens

/// Means over the queries. Probabilities are those of the exact attention: a sink logit without a
/// token takes its share, which counts nowhere here.
struct AttentionFacts {
  double entropy = 0.0;       ///< nats: -sum_i p_i log p_i
  double heavy_tokens = 0.0;  ///< fewest tokens that have kHeavyMass of the tokens' mass
  double first_mass = 0.0;    ///< on tokens [0, kFirstTokens)
  double near_mass = 0.0;     ///< on the kNearTokens up to the query, the first ones excepted
};

/// Of the last min(kFactQueries, nq) queries of query head `g`. Needs keys and queries only. Does
/// not depend on `threads`. Time O(queries n d), memory as attention_facts_bytes().
AttentionFacts attention_facts(const KvHead& head, Index g, int threads);

/// Bytes that a thread needs for a head of n tokens.
Index attention_facts_bytes(Index n);

}  // namespace kvbench
