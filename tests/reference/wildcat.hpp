// WildCat by its definition: the exponential kernel itself in long double, whose exponent reaches
// 11355, and linear equations by elimination.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

namespace reference {

/// One bin: what is drawn by `uniforms` from the centred keys under exp(s<k,k'> / tau^2), and sums
/// of Nystrom weights over the bin, and of values times these.
struct Coreset {
  std::vector<std::size_t> picks;
  Vec weights;
  Rows values;
};

// W0(y) of y > 0 by bisection of w e^w.
inline Real lambert(Real y) {
  Real low = 0;
  Real high = y + 1;
  for (int i = 0; i < 300; ++i) {
    const Real w = (low + high) / 2;
    (w * std::exp(w) < y ? low : high) = w;
  }
  return low;
}

// a^-1 b by elimination with row pivots.
inline Rows solved(Rows a, Rows b) {
  const std::size_t n = a.size();
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t best = c;
    for (std::size_t r = c; r < n; ++r) {
      best = std::abs(a[r][c]) > std::abs(a[best][c]) ? r : best;
    }
    std::swap(a[c], a[best]);
    std::swap(b[c], b[best]);
    for (std::size_t r = 0; r < n; ++r) {
      if (r == c) {
        continue;
      }
      const Real f = a[r][c] / a[c][c];
      for (std::size_t j = 0; j < n; ++j) {
        a[r][j] -= f * a[c][j];
      }
      for (std::size_t j = 0; j < b[0].size(); ++j) {
        b[r][j] -= f * b[c][j];
      }
    }
  }
  for (std::size_t r = 0; r < n; ++r) {
    for (Real& x : b[r]) {
      x /= a[r][r];
    }
  }
  return b;
}

/// tau^2 of count keys with norms up to `radius`: b / (2 W0(b / (2 rho))).
inline Real wildcat_temperature(Real scale, std::size_t count, Real radius) {
  const Real rho = std::sqrt(1 + std::exp(lambert(2 * std::exp(Real{-2})) + 2));
  const Real b = std::log(static_cast<Real>(count)) / (scale * radius * radius) + 2;
  return b / (2 * lambert(b / (2 * rho)));
}

inline Coreset wildcat(const Rows& keys, const Rows& values, Real scale, Real tau_squared,
                       const std::vector<double>& uniforms) {
  const std::size_t n = keys.size();
  const auto h = [&](std::size_t i, std::size_t j) {
    return std::exp(scale / tau_squared * dot(keys[i], keys[j]));
  };
  Coreset out;
  Rows weights;  // W [picks, n]
  for (const double uniform : uniforms) {
    // The diagonal of H - H_.S H_SS^-1 H_S.
    Vec left;
    Real sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      Real x = h(i, i);
      for (std::size_t s = 0; s < weights.size(); ++s) {
        x -= h(out.picks[s], i) * weights[s][i];
      }
      const bool picked = std::find(out.picks.begin(), out.picks.end(), i) != out.picks.end();
      left.push_back(picked || x <= 1e-10L * h(i, i) ? 0 : x);
      sum += left.back();
    }
    if (sum == 0) {
      break;
    }
    std::size_t next = 0;
    Real below = left[0];
    while (below <= static_cast<Real>(uniform) * sum) {
      below += left[++next];
    }
    out.picks.push_back(next);
    Rows core;
    Rows rows;
    for (const std::size_t s : out.picks) {
      core.emplace_back();
      rows.emplace_back();
      for (const std::size_t t : out.picks) {
        core.back().push_back(h(s, t));
      }
      for (std::size_t i = 0; i < n; ++i) {
        rows.back().push_back(h(s, i));
      }
    }
    weights = solved(core, rows);
  }
  for (const Vec& row : weights) {
    Real sum = 0;
    Vec value(values[0].size(), 0);
    for (std::size_t i = 0; i < n; ++i) {
      sum += row[i];
      for (std::size_t c = 0; c < value.size(); ++c) {
        value[c] += row[i] * values[i][c];
      }
    }
    out.weights.push_back(sum);
    out.values.push_back(value);
  }
  return out;
}

}  // namespace reference
