// Slow reference of vAttention for one query, from given draws.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

namespace reference {

struct Sampled {
  Index draws = 0;  // b
  Vec weights;      // of the tokens: 0 if not read
};

/// `logits`: of the tokens that the query sees; `exact`: those read with weight 1; `sink`: a
/// further logit, or -inf. `base` and `then`: tokens drawn, `then` at least n. z: the normal
/// quantile of 1 - delta.
inline Sampled vattention(const Vec& logits, const std::vector<bool>& exact, Real sink,
                          const std::vector<Index>& base, const std::vector<Index>& then,
                          Real epsilon, Real z) {
  Real n = 0;
  Real statics = std::exp(sink);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    (exact[i] ? statics : n) += exact[i] ? std::exp(logits[i]) : 1;
  }
  const auto count = static_cast<Real>(base.size());
  Real mean = 0;
  for (const Index i : base) {
    mean += std::exp(logits[i]) / count;
  }
  Real variance = 0;
  for (const Index i : base) {
    variance += std::pow(std::exp(logits[i]) - mean, 2) / (count - 1);
  }
  Real wanted = 0;
  if (n > 0) {
    wanted = std::pow(z * std::sqrt(variance) * n / (epsilon * (statics + n * mean)), 2);
  }
  Sampled out;
  out.draws = static_cast<Index>(std::min(n, std::max(count, std::floor(wanted))));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    out.weights.push_back(exact[i] ? 1 : 0);
  }
  for (Index i = 0; i < out.draws; ++i) {
    out.weights[then[i]] += n / static_cast<Real>(out.draws);
  }
  return out;
}

}  // namespace reference
