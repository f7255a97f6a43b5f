// BumbleBee by its definitions (docs/methods.md): every set function is evaluated anew from all
// pairs, in long double. Shares no code with lib but its types.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>

#include "reference/reference.hpp"

namespace reference {

enum class Sim { relu, one_plus, absolute };

struct Phi {
  bool power = false;
  Real alpha = 0.04L, beta = 1;
};

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

/// All similarities. With `grid` each is rounded to the nearest multiple of 2^-30 of the largest
/// possible (1, and 2 for 1 + cos), as lib says that it does.
inline Rows similarities(const Rows& keys, Sim sim, bool grid) {
  Rows out(keys.size(), Vec(keys.size(), 0));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const Real norms = std::sqrt(dot(keys[i], keys[i])) * std::sqrt(dot(keys[j], keys[j]));
      if (norms == 0) {
        continue;
      }
      const Real cosine = i == j ? 1 : dot(keys[i], keys[j]) / norms;
      const Real most = sim == Sim::one_plus ? 2 : 1;
      Real s = sim == Sim::relu       ? std::max<Real>(0, cosine)
               : sim == Sim::one_plus ? 1 + cosine
                                      : std::abs(cosine);
      if (grid) {
        s = std::round(s / most * 0x1p30L) * 0x1p-30L * most;
      }
      out[i][j] = s;
    }
  }
  return out;
}

/// The mixture of `keys` without importance, as the parameters sim, lambda and phi say.
inline Mixture mixture_of(const Rows& keys, std::map<std::string, std::string> given, bool grid) {
  given.insert({{"sim", "relu"}, {"lambda", "0.3"}, {"phi", "log"}});
  Mixture out;
  out.sim = similarities(keys,
                         given["sim"] == "relu"       ? Sim::relu
                         : given["sim"] == "one-plus" ? Sim::one_plus
                                                      : Sim::absolute,
                         grid);
  out.lambda = std::stold(given["lambda"]);
  out.phi.power = given["phi"] == "power";
  return out;
}

/// phi(x), for `power` by bisection down to the last bit.
inline Real phi_value(const Phi& phi, Real x) {
  if (!phi.power) {
    return std::log1p(x);
  }
  const auto inverse = [&](Real y) {
    return phi.alpha * std::pow(y, 1 / phi.alpha) + phi.beta * y;
  };
  if (x <= 0) {
    return 0;
  }
  Real low = 0;
  Real high = 1;
  while (inverse(high) < x) {
    high *= 2;
  }
  for (Real middle = high / 2; low < middle && middle < high; middle = (low + high) / 2) {
    (inverse(middle) < x ? low : high) = middle;
  }
  return high;
}

inline Real Mixture::f(const std::vector<Index>& a) const {
  Real sum = 0;
  for (std::size_t v = 0; v < sim.size(); ++v) {
    Real most = 0;
    for (const Index u : a) {
      most = std::max(most, sim[v][u]);
    }
    sum += most;
  }
  return sum;
}

inline Real Mixture::c(const std::vector<Index>& a) const {
  Real sum = 0;
  for (const Index u : a) {
    sum += acc[u];
  }
  return phi_value(phi, sum);
}

inline Real Mixture::value(const std::vector<Index>& a) const {
  std::vector<Index> all(sim.size());
  std::iota(all.begin(), all.end(), Index{0});
  const Real f_all = f(all);
  const Real c_all = c(all);
  Real out = 0;
  if (f_all > 0) {
    out += lambda * f(a) / f_all;
  }
  if (c_all > 0) {
    out += (1 - lambda) * c(a) / c_all;
  }
  return out;
}

/// `count` members one by one, each the first with the largest value(A + e); in order of selection.
/// A starts as `start`, which comes first.
inline std::vector<Index> greedy(const Mixture& g, Index count,
                                 const std::vector<Index>& start = {}) {
  std::vector<Index> out = start;
  while (out.size() < start.size() + static_cast<std::size_t>(count)) {
    Index best = -1;
    Real best_so_far = 0;
    for (Index e = 0; e < static_cast<Index>(g.sim.size()); ++e) {
      if (std::find(out.begin(), out.end(), e) != out.end()) {
        continue;
      }
      std::vector<Index> with = out;
      with.push_back(e);
      const Real value = g.value(with);
      if (best < 0 || value > best_so_far) {
        best = e;
        best_so_far = value;
      }
    }
    out.push_back(best);
  }
  return out;
}

/// The largest value of any `count` members.
inline Real best_value(const Mixture& g, Index count) {
  Real best = 0;
  for (std::uint32_t set = 0; set < (1U << g.sim.size()); ++set) {
    if (std::popcount(set) != static_cast<int>(count)) {
      continue;
    }
    std::vector<Index> a;
    for (Index i = 0; i < static_cast<Index>(g.sim.size()); ++i) {
      if ((set >> static_cast<unsigned>(i) & 1U) != 0) {
        a.push_back(i);
      }
    }
    best = std::max(best, g.value(a));
  }
  return best;
}

}  // namespace reference
