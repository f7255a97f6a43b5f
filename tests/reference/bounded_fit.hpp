// Least squares within bounds and with a ridge, by their definitions in long double.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

namespace reference {

inline std::size_t columns_of(const Rows& e) {
  return e.empty() ? 0 : e.front().size();
}

inline Vec residual(const Rows& e, const Vec& y, const Vec& w) {
  Vec out;
  for (std::size_t i = 0; i < e.size(); ++i) {
    out.push_back(dot(e[i], w) - y[i]);
  }
  return out;
}

inline Vec column(const Rows& e, std::size_t j) {
  Vec out;
  for (const Vec& row : e) {
    out.push_back(row[j]);
  }
  return out;
}

/// x of A x = b by elimination with full pivoting; unknowns whose pivot is below 1e-13 of the
/// largest are 0.
inline Vec eliminate(Rows a, Vec b) {
  const std::size_t n = b.size();
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) {
    order[i] = i;
  }
  Real largest = 0;
  std::size_t rank = 0;
  for (; rank < n; ++rank) {
    std::size_t row = rank;
    std::size_t col = rank;
    for (std::size_t i = rank; i < n; ++i) {
      for (std::size_t j = rank; j < n; ++j) {
        if (std::fabs(a[i][j]) > std::fabs(a[row][col])) {
          row = i;
          col = j;
        }
      }
    }
    const Real pivot = std::fabs(a[row][col]);
    largest = std::max(largest, pivot);
    if (!(pivot > 1e-13L * largest)) {
      break;
    }
    std::swap(a[row], a[rank]);
    std::swap(b[row], b[rank]);
    for (Vec& r : a) {
      std::swap(r[col], r[rank]);
    }
    std::swap(order[col], order[rank]);
    for (std::size_t i = rank + 1; i < n; ++i) {
      const Real factor = a[i][rank] / a[rank][rank];
      for (std::size_t j = rank; j < n; ++j) {
        a[i][j] -= factor * a[rank][j];
      }
      b[i] -= factor * b[rank];
    }
  }
  Vec x(n, 0);
  for (std::size_t i = rank; i-- > 0;) {
    Real sum = b[i];
    for (std::size_t j = i + 1; j < rank; ++j) {
      sum -= a[i][j] * x[order[j]];
    }
    x[order[i]] = sum / a[i][i];
  }
  return x;
}

/// |E w - y|^2.
inline Real misfit(const Rows& e, const Vec& y, const Vec& w) {
  const Vec r = residual(e, y, w);
  return dot(r, r);
}

/// By how much w violates the optimality conditions of min |E w - y|^2, low <= w <= high, in units
/// of |column| |y|: the gradient of a weight at `low` may not be negative, at `high` not positive,
/// between (more than `near` from both) not anything but 0.
inline Real violation(const Rows& e, const Vec& y, const Vec& w, Real low, Real high, Real near) {
  const Vec r = residual(e, y, w);
  Real worst = 0;
  for (std::size_t j = 0; j < w.size(); ++j) {
    const Vec own = column(e, j);
    const Real unit = length(own) * length(y);
    if (!(unit > 0)) {
      continue;
    }
    const Real gradient = dot(own, r) / unit;
    const bool at_low = w[j] <= low + near;
    const bool at_high = w[j] >= high - near;
    worst = std::max(worst, at_low && at_high ? 0
                            : at_low          ? -gradient
                            : at_high         ? gradient
                                              : std::fabs(gradient));
  }
  return worst;
}

/// argmin |E w - y|^2, low <= w <= high: Stark and Parker's active-set method (1995). All weights
/// start at `low`; the one that most wants to leave its bound is freed; the free ones move to their
/// least squares solution, or as far as the first bound on the way.
inline Vec bounded_fit(const Rows& e, const Vec& y, Real low, Real high) {
  const std::size_t count = columns_of(e);
  Vec w(count, low);
  std::vector<bool> is_free(count, false);
  std::vector<bool> barred(count, false);
  const Real flat = 1e-14L;
  for (;;) {
    const Vec r = residual(e, y, w);
    std::size_t next = count;
    Real most = flat;
    for (std::size_t j = 0; j < count && high > low; ++j) {
      const Vec own = column(e, j);
      const Real unit = length(own) * length(y);
      if (is_free[j] || barred[j] || !(unit > 0)) {
        continue;
      }
      const Real inward = (w[j] > low ? 1 : -1) * dot(own, r) / unit;
      if (inward > most) {
        most = inward;
        next = j;
      }
    }
    if (next == count) {
      return w;
    }
    is_free[next] = true;
    const Real before = misfit(e, y, w);
    for (;;) {
      std::vector<std::size_t> open;
      for (std::size_t j = 0; j < count; ++j) {
        if (is_free[j]) {
          open.push_back(j);
        }
      }
      const Vec now = residual(e, y, w);
      Vec unit;  // columns of all sizes: each is measured by its own length
      for (const std::size_t j : open) {
        unit.push_back(length(column(e, j)));
      }
      Rows normal(open.size(), Vec(open.size()));
      Vec right(open.size());
      for (std::size_t a = 0; a < open.size(); ++a) {
        right[a] = -dot(column(e, open[a]), now) / unit[a];
        for (std::size_t b = 0; b < open.size(); ++b) {
          normal[a][b] = dot(column(e, open[a]), column(e, open[b])) / (unit[a] * unit[b]);
        }
      }
      Vec best = eliminate(normal, right);  // the way there: 0 along what depends on others
      for (std::size_t a = 0; a < open.size(); ++a) {
        best[a] = w[open[a]] + best[a] / unit[a];
      }
      Real step = 1;
      std::size_t stop = open.size();
      for (std::size_t a = 0; a < open.size(); ++a) {
        const Real from = w[open[a]];
        if (best[a] < low || best[a] > high) {
          const Real reach = ((best[a] < low ? low : high) - from) / (best[a] - from);
          if (stop == open.size() || reach < step) {
            step = reach;
            stop = a;
          }
        }
      }
      for (std::size_t a = 0; a < open.size(); ++a) {
        w[open[a]] += step * (best[a] - w[open[a]]);
      }
      if (stop == open.size()) {
        break;
      }
      w[open[stop]] = best[stop] < low ? low : high;
      is_free[open[stop]] = false;
    }
    // A weight that did not help is rounding's: asked once more it would go round in circles.
    if (misfit(e, y, w) < before) {
      barred.assign(count, false);
    } else {
      barred[next] = true;
    }
  }
}

/// (X'X + r) D = X'T by its normal equations, column by column.
inline Rows ridge(const Rows& x, const Rows& t, Real r) {
  Rows normal = gram(x);
  for (std::size_t a = 0; a < normal.size(); ++a) {
    normal[a][a] += r;
  }
  Rows out;
  for (const Vec& right : transposed(product(transposed(x), t))) {
    out.push_back(eliminate(normal, right));
  }
  return transposed(out);
}

/// Orthogonal matching pursuit, step by step: numbers of `count` columns in the order chosen.
inline std::vector<Index> pursuit(const Rows& e, const Vec& y, Index count, Real low, Real high) {
  std::vector<Index> chosen;
  Vec w;
  while (static_cast<Index>(chosen.size()) < count) {
    Rows part(e.size());
    for (std::size_t i = 0; i < e.size(); ++i) {
      for (const Index j : chosen) {
        part[i].push_back(e[i][j]);
      }
    }
    const Vec r = chosen.empty() ? residual(e, y, Vec(columns_of(e), 0)) : residual(part, y, w);
    Index best = -1;
    Real most = 0;
    for (std::size_t j = 0; j < columns_of(e); ++j) {
      if (std::find(chosen.begin(), chosen.end(), static_cast<Index>(j)) != chosen.end()) {
        continue;
      }
      const Real along = -dot(column(e, j), r);
      if (best < 0 || along > most) {
        best = static_cast<Index>(j);
        most = along;
      }
    }
    chosen.push_back(best);
    for (std::size_t i = 0; i < e.size(); ++i) {
      part[i].push_back(e[i][best]);
    }
    w = bounded_fit(part, y, low, high);
  }
  return chosen;
}

}  // namespace reference
