// What a method holds as weighted sets of the slow estimator.
#pragma once

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

}  // namespace kvbench
