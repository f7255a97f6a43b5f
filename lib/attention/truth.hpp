// Ground truth: exact causal attention of the last queries of a KV head, within the layer's window
// and with its sink logits. Computed once per head for all methods, budgets and seeds.
#pragma once

#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Attention probability above which losing a token counts as forgetting it
/// (KVReviver, figure 2: heavy hitters are tokens with attention above 0.005).
inline constexpr double kAmnesiaThreshold = 0.005;

/// Exact attention of m queries of one query head.
struct ExactAttention {
  MatrixD output;                     ///< [m, dv]: a_j = sum_i p_ji v_i over the tokens seen
  std::vector<double> log_z;          ///< [m]: log of sum_i exp(s<k_i, q_j>) and the sink's term
  std::vector<double> p_norm;         ///< [m]: |p_j|_2, over tokens
  std::vector<double> mass;           ///< [n]: mean over the m queries of p_ji (0 where unseen)
  std::vector<std::uint8_t> noticed;  ///< [n]: p_ji > kAmnesiaThreshold for some query
};

inline constexpr Index kTruthBlock = 64;  ///< queries that a thread handles at a time

/// Exact attention of the queries of query head `g` of the group at `positions`, at least one, all
/// >= q_start; each sees the tokens up to itself, within the window. Products are computed in the
/// head's precision, sums over tokens in float64. The result does not depend on `threads`. Memory:
/// threads x kTruthBlock x n elements of that precision.
ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                               int threads);
/// The last `m` queries, 1 <= m <= nq.
ExactAttention exact_attention(const KvHead& head, Index g, Index m, int threads);

/// Rows p_j [positions, n] of exact attention, 0 where unseen.
MatrixD exact_probabilities(const KvHead& head, Index g, std::span<const Index> positions);

/// The probability of the sink logit for a query of query head `g`; 0 without one. `log_z`: of the
/// exact attention.
double sink_share(const KvHead& head, Index g, double log_z);

}  // namespace kvbench
