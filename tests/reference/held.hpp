// What a method holds as weighted sets of the slow estimator.
#pragma once

#include <vector>

#include "core/compressed.hpp"
#include "reference/reference.hpp"

namespace reference {

struct HeldSets {
  std::vector<Weighted> numerator, denominator;
};

/// `exact`: tokens held with weight 1 beside `c`, in both sets.
inline HeldSets held_sets(const kvbench::KvHead& head, const std::vector<Index>& exact,
                          const kvbench::Compressed& c) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  const auto add = [&](const kvbench::HeldTokens& held, const kvbench::MadeTokens& made,
                       bool values, std::vector<Weighted>& to) {
    for (std::size_t i = 0; i < held.tokens.size(); ++i) {
      const auto t = static_cast<std::size_t>(held.tokens[i]);
      to.push_back({k[t], values ? v[t] : Vec(), held.weight(i)});
    }
    const Rows made_k = rows_of(made.k);
    const Rows made_v = values ? rows_of(made.v) : Rows(made_k.size());
    for (std::size_t i = 0; i < made_k.size(); ++i) {
      to.push_back({made_k[i], made_v[i], made.weights.empty() ? Real{1} : made.weights[i]});
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

}  // namespace reference
