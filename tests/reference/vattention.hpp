// Slow reference of vAttention for one query, from given draws.
#pragma once

#include "reference/reference.hpp"

namespace reference {

struct Sampled {
  Index draws = 0;  // b
  Vec weights;      // of the tokens: 0 if not read
};

/// `logits`: of the tokens that the query sees; `exact`: those read with weight 1; `sink`: a
/// further logit, or -inf. `base` and `then`: tokens drawn, `then` at least n. z: the normal
/// quantile of 1 - delta.
Sampled vattention(const Vec& logits, const std::vector<bool>& exact, Real sink,
                   const std::vector<Index>& base, const std::vector<Index>& then, Real epsilon,
                   Real z);

}  // namespace reference
