// SoftmaxBalance: the self-balancing walk over one block of tokens, with the kernel
//   G_ij = exp(s <k_i, k_j>) w_i w_j (<v_i, v_j> + bias), or with a plain bias
//   G_ij = exp(s <k_i, k_j>) (w_i w_j <v_i, v_j> + bias).
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithm 2.
// [2] Alweiss, Liu, Sawhney, "Discrepancy minimization via a self-balancing walk", STOC 2021.
//
// exp(s|k|^2) overflows float64 for key norms of real models. So each token's row of exponents is
// shifted by its maximum, and probabilities are compared in log space. The algorithm remains [1]'s,
// and no input in the range of T gives inf or NaN.
//
// T: element type of centred keys, of G's inner products, exponentials and their products. Means,
// logarithms and the walk's sums y_j are float64. T = float: keys and values up to 1e15, and a bias
// up to 1e30, are in range; products of values below 1e-38 vanish.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// How P(eta_j = +1) = 1/2 - y_j * step is scaled; y_j = sum_{i<j} G_ij eta_i.
enum class WalkStep {
  theory,  ///< 1 / (2 c R^2), c = 30 ln(nb / failure), R^2 = max_j G_jj, as in [1]
  fixed,   ///< gamma / R^2
  self,    ///< gamma / G_jj
  greedy,  ///< the sign that opposes y_j; a fair coin at exactly 0
  repo,    ///< gamma; the first sign is +1, as in the authors' public code
};

struct WalkOptions {
  WalkStep step = WalkStep::fixed;
  double gamma = 1.0;       ///< >= 0; for fixed, self, repo. 0: an independent fair coin
  double failure = 0.01;    ///< in (0, 1); for theory: probability of failure
  double scale = 1.0;       ///< s, already multiplied by `temp`
  double value_bias = 0.0;  ///< >= 0; adds a value coordinate sqrt(bias) to every token
  bool plain_bias = false;  ///< the weights do not multiply the bias
  bool center = true;       ///< subtract the block's mean key, a common factor for each query
  Index padded = 0;         ///< tokens; a shorter block's mean key counts zero keys up to this many
};

/// Events of a walk.
struct WalkCounts {
  std::int64_t steps = 0;
  std::int64_t failures = 0;   ///< theory: |y_j| > c R^2
  std::int64_t saturated = 0;  ///< P <= 0 or P >= 1
  std::int64_t coin = 0;       ///< |P - 1/2| < 0.01

  WalkCounts& operator+=(const WalkCounts& o);
};

/// Walks over consecutive blocks of one sequence of tokens of a head.
struct BalanceBlocks {
  std::span<const Index> tokens;     ///< positions in the head, in the order of the walk
  std::span<const double> weights;   ///< [tokens], > 0
  std::span<const double> uniforms;  ///< [tokens], in [0, 1)
  Index block = 256;                 ///< tokens per block; the last one may be shorter
  bool ones = false;                 ///< balance the keys alone: every value is 1, of one channel
  WalkOptions options;
};

/// Scratch of walks in T, reused from block to block.
template <class T>
struct WalkNumbers {
  BasicMatrix<T> keys, values;  // of balance_blocks
  BasicMatrix<T> transposed, exponent, kernel;
  std::vector<T> shift, weights;
  std::vector<double> norm_exponent, sums;
};

/// Walks one block of nb tokens in their order.
/// keys [nb, d] (centred in place with options.center), values [nb, dv], weights [nb] (> 0),
/// uniforms [nb] in [0, 1): token j gets +1 where uniforms[j] < P_j. Out: signs [nb] in {-1, +1};
/// `probability` [nb] or empty: P_j clamped to [0, 1]. Time O(nb^2 (d + dv)), memory O(nb^2).
template <class T>
WalkCounts softmax_balance(BasicMatrix<T>& keys, const BasicMatrix<T>& values,
                           std::span<const double> weights, const WalkOptions& options,
                           std::span<const double> uniforms, std::span<std::int8_t> signs,
                           std::span<double> probability, WalkNumbers<T>& scratch);
extern template WalkCounts softmax_balance(MatrixD&, const MatrixD&, std::span<const double>,
                                           const WalkOptions&, std::span<const double>,
                                           std::span<std::int8_t>, std::span<double>,
                                           WalkNumbers<double>&);
extern template WalkCounts softmax_balance(Matrix&, const Matrix&, std::span<const double>,
                                           const WalkOptions&, std::span<const double>,
                                           std::span<std::int8_t>, std::span<double>,
                                           WalkNumbers<float>&);

/// Walks each block independently, in the head's precision. Out: signs [tokens]; `probability`
/// [tokens] or empty.
WalkCounts balance_blocks(const KvHead& head, const BalanceBlocks& blocks,
                          std::span<std::int8_t> signs, std::span<double> probability);

// The parts of a walk that every backend shares.

/// log G_jj, from token j's squared norms.
double log_diagonal(const WalkOptions& options, double key_square, double value_square,
                    double weight);

/// c of WalkStep::theory in a block of `nb` tokens.
double theory_constant(const WalkOptions& options, Index nb);

/// Unclamped P(+1) of a token. `sum` * exp(`shift`) is y_j; `log_r2` = log R^2, `log_own` = log
/// G_jj, `theory_c` = c; `first`: the block's first token.
KVB_HD inline double probability_of_plus(const WalkOptions& o, double sum, double shift,
                                         double log_r2, double log_own, double theory_c,
                                         bool first) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (o.step == WalkStep::repo && first) {
    return 1.0;
  }
  if (sum == 0.0 || (o.gamma == 0.0 && o.step != WalkStep::theory && o.step != WalkStep::greedy)) {
    return 0.5;
  }
  switch (o.step) {
    case WalkStep::theory: return 0.5 - scaled_exp(sum, shift - log_r2) / (2.0 * theory_c);
    case WalkStep::fixed: return 0.5 - o.gamma * scaled_exp(sum, shift - log_r2);
    case WalkStep::self: return 0.5 - o.gamma * scaled_exp(sum, shift - log_own);
    case WalkStep::greedy: return sum > 0.0 ? -kInfinity : kInfinity;
    case WalkStep::repo: return 0.5 - o.gamma * scaled_exp(sum, shift);
  }
  return 0.5;
}

/// What a token's sign is multiplied by in the sums of later tokens: a plain bias takes the weight
/// w_i into G_ij's bracket.
KVB_HD inline double row_weight(const WalkOptions& o, double weight) {
  return o.plain_bias ? 1.0 : weight;
}

/// G_ij / exp(s <k_i, k_j>) / row_weight. `inner` = <v_i, v_j>; `bias` = o.value_bias.
template <class T>
KVB_HD inline T value_factor(bool plain_bias, T inner, T bias, T weight_i, T weight_j) {
  return plain_bias ? inner * weight_j * weight_i + bias : (inner + bias) * weight_j;
}

KVB_HD inline double clamp_probability(double p) {
  return p < 0.0 ? 0.0 : (p > 1.0 ? 1.0 : p);
}

/// `p`: unclamped P(+1).
KVB_HD inline std::int8_t sign_of(double p, double uniform) {
  return uniform < clamp_probability(p) ? std::int8_t{1} : std::int8_t{-1};
}

void count_step(WalkStep step, double p, WalkCounts& counts);

}  // namespace kvbench
