// BumbleBee by its definitions (docs/methods.md): every set function is evaluated anew from all
// pairs, in long double. Shares no code with lib but its types.
#pragma once

#include <vector>

#include "core/types.hpp"
#include "reference/reference.hpp"

namespace reference {

enum class Sim { relu, one_plus, absolute };

/// All similarities. With `grid` each is rounded to the nearest multiple of 2^-30 of the largest
/// possible (1, and 2 for 1 + cos), as lib says that it does.
Rows similarities(const Rows& keys, Sim sim, bool grid);

struct Phi {
  bool power = false;
  Real alpha = 0.04L, beta = 1;
};
/// phi(x), for `power` by bisection down to the last bit.
Real phi_value(const Phi& phi, Real x);

/// g over the ground set of `sim`: lambda f(A)/f(M) + (1-lambda) c(A)/c(M), a term 0 where its
/// normaliser is.
struct Mixture {
  Rows sim;
  Vec acc;
  Real lambda = 0.3L;
  Phi phi;

  Real f(const std::vector<Index>& a) const;
  Real c(const std::vector<Index>& a) const;
  Real value(const std::vector<Index>& a) const;
};

/// `count` members one by one, each the first with the largest value(A + e); in order of selection.
/// A starts as `start`, which comes first.
std::vector<Index> greedy(const Mixture& g, Index count, const std::vector<Index>& start = {});

/// The largest value of any `count` members.
Real best_value(const Mixture& g, Index count);

}  // namespace reference
