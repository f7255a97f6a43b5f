// Ground truth: exact causal attention of the last queries of a KV head, within the layer's window
// and with its sink logits, and what the metrics need of its probabilities. Sums over tokens in
// float64; products in the head's precision. Computed once per head; serves every method, budget
// and seed. Knows no method.
#pragma once

#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Attention probability above which losing a token counts as forgetting it
/// (KVReviver, figure 2: heavy hitters are tokens with attention above 0.005).
inline constexpr double kAmnesiaThreshold = 0.005;

/// Exact attention of one query head. m evaluated queries, the last m positions of n.
struct ExactAttention {
  MatrixD output;                     ///< [m, dv]: a_j = sum_i p_ji v_i over the tokens seen
  std::vector<double> log_z;          ///< [m]: log of sum_i exp(s<k_i, q_j>) and the sink's term
  std::vector<double> p_norm;         ///< [m]: |p_j|_2, over tokens
  std::vector<double> mass;           ///< [n]: mean over the m queries of p_ji (0 where unseen)
  std::vector<std::uint8_t> noticed;  ///< [n]: p_ji > kAmnesiaThreshold for some query
};

inline constexpr Index kTruthBlock = 64;  ///< queries that a thread handles at a time

/// Exact attention of the last `m` queries of query head `g` of the group, 1 <= m <= nq.
/// Blocked over queries and run on `threads` threads; the result does not depend on how many.
/// Memory: threads x kTruthBlock x n elements of the head's precision.
ExactAttention exact_attention(const KvHead& head, Index g, Index m, int threads);

/// The same for the queries at `positions` (those that the trace holds; at least one), in their
/// order; each sees the tokens up to itself, within the window.
ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                               int threads);

/// Rows p_j [positions, n] of exact attention, 0 where unseen: for figures that need each query's
/// own probabilities, a block of queries at a time.
MatrixD exact_probabilities(const KvHead& head, Index g, std::span<const Index> positions);

/// What a query of query head `g` gives to the head's sink logit; 0 where it has none. `log_z`: of
/// the exact attention.
double sink_share(const KvHead& head, Index g, double log_z);

}  // namespace kvbench
