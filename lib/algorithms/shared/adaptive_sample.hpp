// Samples of tokens that bound the error of one query's denominator.
// [1] Desai et al., "vAttention: Verified Sparse Attention via Sampling", 2025, arXiv:2510.05688.
// [2] Its code, xAlg-ai/sparse-attention-hub 1a048c9: AdaptiveSamplingMasker.
#pragma once

#include <span>
#include <vector>

#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

/// x with P(X > x) = delta of a standard normal X, 0 < delta <= 1/2.
double upper_quantile(double delta);

struct SampleRules {
  std::span<const Index> tokens;  ///< of the task, ascending
  Index heavy = 0;                ///< of these, how many with the largest logits are read exactly
  Index base = 0;                 ///< draws of the base sample: at least 2, or 0 if all are heavy
  double z = 0.0;

  Index sampled() const { return static_cast<Index>(tokens.size()) - heavy; }  ///< n
};

/// One query's draws, with replacement, of the task's tokens that are not heavy.
class AdaptiveSample {
 public:
  /// Draws the base sample. `logits`: of all tokens that the query sees; `exact`, of all tokens of
  /// the head: those outside the task. `rules` must outlive this.
  AdaptiveSample(const SampleRules& rules, std::span<const double> logits, double sink_logit,
                 std::vector<bool> exact, RngStream draws);

  /// b = floor((z std n / (epsilon D))^2), at least the base's draws and at most n: std (n - 1) of
  /// the base sample's exponentials, D the exact ones (the sink's too) plus n / base times these.
  /// If all of the base sample are equal, std is 0.
  Index size(double epsilon) const;
  bool is_exact(Index token) const { return exact_[static_cast<std::size_t>(token)]; }
  /// [tokens of the head]: how often each is among the first `count` draws after the base sample.
  std::vector<std::uint32_t> times(Index count) const;
  /// Of draws [0, n) after the base sample, ascending: those that are the first of their token.
  std::vector<Index> first_draws() const;

 private:
  Index draw(RngStream& from) const;

  const SampleRules& rules_;
  std::vector<bool> exact_;
  RngStream draws_;
  double deviation_ = 0.0;  // z std n / D
};

}  // namespace kvbench
