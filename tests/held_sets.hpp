// What a method holds as weighted sets of the slow estimator.
#pragma once

#include <cmath>
#include <vector>

#include "core/compressed.hpp"
#include "reference/reference.hpp"

namespace kvbench {

struct HeldSets {
  std::vector<reference::Weighted> numerator, denominator;
};

/// `exact`: tokens held with weight 1 beside `c`, in both sets.
inline HeldSets held_sets(const KvHead& head, const std::vector<Index>& exact,
                          const Compressed& c) {
  const reference::Rows k = reference::rows_of(head.k);
  const reference::Rows v = reference::rows_of(head.v);
  const auto add = [&](const HeldTokens& held, const MadeTokens& made, bool values,
                       std::vector<reference::Weighted>& to) {
    for (std::size_t i = 0; i < held.tokens.size(); ++i) {
      const auto t = static_cast<std::size_t>(held.tokens[i]);
      to.push_back({k[t], values ? v[t] : reference::Vec(), held.weight(i)});
    }
    const reference::Rows made_k = reference::rows_of(made.k);
    const reference::Rows made_v =
        values ? reference::rows_of(made.v) : reference::Rows(made_k.size());
    for (std::size_t i = 0; i < made_k.size(); ++i) {
      to.push_back(
          {made_k[i], made_v[i], made.weights.empty() ? reference::Real{1} : made.weights[i]});
    }
  };
  HeldSets out;
  for (const Index t : exact) {
    out.numerator.push_back({k[static_cast<std::size_t>(t)], v[static_cast<std::size_t>(t)], 1});
  }
  out.denominator = out.numerator;
  add(c.held, c.made, true, out.numerator);
  if (c.denominator) {
    add(c.denominator->held, c.denominator->made, false, out.denominator);
  } else {
    out.denominator = out.numerator;
  }
  return out;
}

/// Errors of a query head by their definition.
struct SlowErrors {
  double rel_error = 0.0;
  double log_z_error = 0.0;
};

/// Over the last `queries` positions. `sets_at`: HeldSets that the query at a position attends to.
template <class SetsAt>
SlowErrors slow_errors(const KvHead& head, Index g, Index queries, const SetsAt& sets_at) {
  reference::Real moved = 0;
  reference::Real norm = 0;
  reference::Real log_z = 0;
  const reference::Rows q = reference::rows_of(head.q[g]);
  for (Index j = head.n() - queries; j < head.n(); ++j) {
    const HeldSets sets = sets_at(j);
    const reference::Estimate z =
        reference::estimate(q[j - head.q_start()], head.scale, sets.numerator, sets.denominator);
    const reference::Attention a = reference::attention(head, g, j);
    for (std::size_t t = 0; t < a.out.size(); ++t) {
      moved += (z.z[t] - a.out[t]) * (z.z[t] - a.out[t]);
      norm += a.out[t] * a.out[t];
    }
    log_z += std::abs(z.log_denominator - a.log_z);
  }
  return {static_cast<double>(std::sqrt(moved / norm)),
          static_cast<double>(log_z / static_cast<reference::Real>(queries))};
}

}  // namespace kvbench
