// WildCat by its definition: the exponential kernel itself in long double, whose exponent reaches
// 11355, and linear equations by elimination.
#pragma once

#include "reference/reference.hpp"

namespace reference {

/// tau^2 of count keys with norms up to `radius`: b / (2 W0(b / (2 rho))).
Real wildcat_temperature(Real scale, std::size_t count, Real radius);

/// One bin: what is drawn by `uniforms` from the centred keys under exp(s<k,k'> / tau^2), and sums
/// of Nystrom weights over the bin, and of values times these.
struct Coreset {
  std::vector<std::size_t> picks;
  Vec weights;
  Rows values;
};
Coreset wildcat(const Rows& keys, const Rows& values, Real scale, Real tau_squared,
                const std::vector<double>& uniforms);

}  // namespace reference
