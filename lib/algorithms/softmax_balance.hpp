// SoftmaxBalance: the self-balancing walk over one block of tokens, with the kernel
//   G_ij = exp(s <k_i, k_j>) w_i w_j (<v_i, v_j> + bias).
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithm 2.
// [2] Alweiss, Liu, Sawhney, "Discrepancy minimization via a self-balancing walk", STOC 2021.
//
// exp(s|k|^2) overflows float64 for key norms of real models, so each token's row of exponents is
// shifted by its own maximum and probabilities are compared in log space. This is exact: the
// algorithm is [1]'s, and no finite input gives inf or NaN.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/similarity.hpp"
#include "core/types.hpp"

namespace kvbench {

/// How P(eta_j = +1) = 1/2 - y_j * step is scaled; y_j = sum_{i<j} G_ij eta_i.
enum class Step {
  theory,  ///< 1 / (2 c R^2), c = 30 ln(nb / failure), R^2 = max_j G_jj: [1] as it stands
  fixed,   ///< gamma / R^2
  self,    ///< gamma / G_jj: relative to the token's own diagonal
  greedy,  ///< the sign that opposes y_j; a fair coin at exactly 0
  repo,    ///< gamma, unscaled; the first sign is +1: the authors' public code
};

struct WalkOptions {
  Step step = Step::fixed;
  double gamma = 1.0;       ///< >= 0; fixed, self, repo. 0: an independent fair coin
  double failure = 0.01;    ///< in (0, 1); theory: probability of failure
  double scale = 1.0;       ///< s, already multiplied by `temp`
  double value_bias = 0.0;  ///< >= 0; one more value coordinate sqrt(bias), the same for all tokens
  bool center = true;       ///< subtract the block's mean key: for one query a common factor
};

/// What a walk reports of itself. Fractions are of `steps`.
struct WalkCounts {
  std::int64_t steps = 0;
  std::int64_t failures = 0;   ///< theory: |y_j| > c R^2
  std::int64_t saturated = 0;  ///< P <= 0 or P >= 1
  std::int64_t coin = 0;       ///< |P - 1/2| < 0.01

  WalkCounts& operator+=(const WalkCounts& o);
};

/// Scratch of a walk, to be reused from block to block.
struct WalkScratch {
  MatrixD transposed, exponent, kernel;
  std::vector<double> shift, norm_exponent, sums;
};

/// Walks one block of nb tokens in the order given.
/// keys [nb, d] (centred in place where asked), values [nb, dv], weights [nb] (> 0), uniforms [nb]
/// in [0, 1): token j gets +1 where uniforms[j] < P_j. Out: signs [nb] in {-1, +1}; `probability`,
/// where not empty, [nb]: P_j clamped to [0, 1]. Time O(nb^2 (d + dv)), memory O(nb^2).
WalkCounts softmax_balance(MatrixD& keys, const MatrixD& values, std::span<const double> weights,
                           const WalkOptions& options, std::span<const double> uniforms,
                           std::span<std::int8_t> signs, std::span<double> probability,
                           WalkScratch& scratch);

}  // namespace kvbench
