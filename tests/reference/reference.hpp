// Slow, obvious references in long double. They share no code with lib but its types, and are
// written from the definitions (docs/methods.md), not from the fast code. A reference is one
// header; names are unique among them.
#pragma once

#include <vector>

#include "core/types.hpp"

namespace reference {

using kvbench::Index;
using Real = long double;
using Vec = std::vector<Real>;
using Rows = std::vector<Vec>;

/// Rows of a matrix as long double.
Rows rows_of(kvbench::MatrixView m);
/// Those at `places`.
Rows rows_at(kvbench::MatrixView m, const std::vector<Index>& places);

Real dot(const Vec& a, const Vec& b);
Real length(const Vec& x);
Real cosine(const Vec& a, const Vec& b);  // 0 of a zero vector
Rows product(const Rows& a, const Rows& b);
Rows transposed(const Rows& x);
Rows gram(const Rows& x);  // X'X
Vec row_mean(const Rows& x);
Rows centred(Rows x, const Vec& mean);
Vec softmax(const Vec& logits);

/// Exact causal attention of the query at `position`, within the head's window and with its sink
/// logit: probabilities of all tokens (0 where unseen).
struct Attention {
  Vec p;    // [n]
  Vec out;  // [dv]
  Real log_z;
};
Attention attention(const kvbench::KvHead& head, Index g, Index position);

/// One entry of a weighted set.
struct Weighted {
  Vec k, v;
  Real w;
};

/// z(q) by its definition, terms in long double without any shift; log of the denominator.
struct Estimate {
  Vec z;
  Real log_denominator;
};
Estimate estimate(const Vec& q, Real scale, const std::vector<Weighted>& numerator,
                  const std::vector<Weighted>& denominator);

/// Entries of keys, values (none: empty) and weights (none: 1).
std::vector<Weighted> entries(const Rows& k, const Rows& v, const std::vector<float>& w = {});

/// |z - z of `exact`| / |z of `exact`| over all queries.
Real relative_error(const Rows& queries, Real scale, const std::vector<Weighted>& exact,
                    const std::vector<Weighted>& numerator,
                    const std::vector<Weighted>& denominator);

/// What the walk's probabilities are scaled by.
enum class ReferenceStep { theory, fixed, self, greedy, repo };
struct WalkReference {
  ReferenceStep step = ReferenceStep::fixed;
  Real gamma = 1, failure = 0.01L, scale = 1, bias = 0;
  bool center = true, plain_bias = false;
  std::size_t padded = 0;
};

/// Algorithm 2 of BalanceKV by its definition: the kernel in long double, whose exponent reaches
/// 11355, unshifted; sums left to right. Gives the probabilities and the signs for `uniforms`.
struct WalkResult {
  Vec p;
  std::vector<int> sign;
  int failures = 0;
};
WalkResult walk(Rows keys, const Rows& values, const Vec& weights, const WalkReference& o,
                const std::vector<double>& uniforms);

/// Positions with the `count` largest scores by sorting all of them; ties to the lowest position.
std::vector<Index> top(const Vec& scores, Index count);
std::vector<Index> top(const std::vector<double>& scores, Index count);

/// Percentile by linear interpolation, from the definition in docs/schema.md.
Real percentile(std::vector<double> values, Real p);

}  // namespace reference
