// Low-rank factors by their definition: eigenvectors of the Gram matrix in long double, whose 64
// bits leave 32 after squaring.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/reference.hpp"

namespace reference {

/// U [m, rank] and C [rank, d] of the truncated singular value decomposition of (x - mean) L, C
/// times L^-1. `weight`: L, or empty for none. Not rounded.
struct LowRank {
  Rows u, c;
};

// Jacobi's method: eigenvalues on the diagonal of `a`, eigenvectors as columns of the result.
inline Rows eigenvectors(Rows& a) {
  const std::size_t n = a.size();
  Rows v(n, Vec(n, 0));
  for (std::size_t i = 0; i < n; ++i) {
    v[i][i] = 1;
  }
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) {
          continue;
        }
        const Real angle = std::atan2(2 * a[p][q], a[q][q] - a[p][p]) / 2;
        const Real c = std::cos(angle);
        const Real s = std::sin(angle);
        for (std::size_t i = 0; i < n; ++i) {
          const Real x = a[i][p];
          a[i][p] = c * x - s * a[i][q];
          a[i][q] = s * x + c * a[i][q];
        }
        for (std::size_t i = 0; i < n; ++i) {
          const Real x = a[p][i];
          a[p][i] = c * x - s * a[q][i];
          a[q][i] = s * x + c * a[q][i];
        }
        for (std::size_t i = 0; i < n; ++i) {
          const Real x = v[i][p];
          v[i][p] = c * x - s * v[i][q];
          v[i][q] = s * x + c * v[i][q];
        }
      }
    }
  }
  return v;
}

/// Mean of the rows.
inline Vec row_mean(const Rows& x) {
  Vec out(x[0].size(), 0);
  for (const Vec& row : x) {
    for (std::size_t c = 0; c < out.size(); ++c) {
      out[c] += row[c] / static_cast<Real>(x.size());
    }
  }
  return out;
}

/// L, lower triangular, of L L' = sum q q' + 1e-6 trace / d I over the rows of `queries` [., d].
inline Rows query_factor(const Rows& queries) {
  const std::size_t d = queries[0].size();
  Rows a(d, Vec(d, 0));
  for (const Vec& q : queries) {
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        a[i][j] += q[i] * q[j];
      }
    }
  }
  Real trace = 0;
  for (std::size_t i = 0; i < d; ++i) {
    trace += a[i][i];
  }
  Rows l(d, Vec(d, 0));
  for (std::size_t i = 0; i < d; ++i) {
    a[i][i] += 1e-6L * trace / static_cast<Real>(d);
  }
  for (std::size_t j = 0; j < d; ++j) {
    for (std::size_t i = j; i < d; ++i) {
      Real x = a[i][j];
      for (std::size_t t = 0; t < j; ++t) {
        x -= l[i][t] * l[j][t];
      }
      l[i][j] = i == j ? std::sqrt(x) : x / l[j][j];
    }
  }
  return l;
}

inline LowRank low_rank(const Rows& x, const Vec& mean, const Rows& weight, std::size_t rank) {
  Rows y = x;
  for (Vec& row : y) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      row[c] -= mean[c];
    }
  }
  if (!weight.empty()) {
    y = product(y, weight);
  }
  const std::size_t d = y[0].size();
  Rows gram(d, Vec(d, 0));
  for (const Vec& row : y) {
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        gram[i][j] += row[i] * row[j];
      }
    }
  }
  const Rows w = eigenvectors(gram);
  std::vector<std::size_t> order(d);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return gram[a][a] > gram[b][b]; });
  LowRank out{Rows(y.size(), Vec(rank, 0)), Rows(rank, Vec(d, 0))};
  for (std::size_t r = 0; r < rank; ++r) {
    const std::size_t at = order[r];
    const Real sigma = std::sqrt(std::max<Real>(gram[at][at], 0));
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t c = 0; c < d; ++c) {
        out.u[i][r] += sigma > 0 ? y[i][c] * w[c][at] / sigma : 0;
      }
    }
    Vec& row = out.c[r];
    for (std::size_t c = 0; c < d; ++c) {
      row[c] = sigma * w[c][at];
    }
    if (!weight.empty()) {  // row := row L^-1
      for (std::size_t c = d; c-- > 0;) {
        for (std::size_t t = c + 1; t < d; ++t) {
          row[c] -= row[t] * weight[t][c];
        }
        row[c] /= weight[c][c];
      }
    }
  }
  return out;
}

}  // namespace reference
