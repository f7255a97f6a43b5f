// Low-rank factors by their definition: eigenvectors of the Gram matrix in long double, whose 64
// bits leave 32 after squaring.
#pragma once

#include "reference/clusterability.hpp"

namespace reference {

/// U [m, rank] and C [rank, d] of the truncated singular value decomposition of (x - mean) L, C
/// times L^-1. `weight`: L, or empty for none. Not rounded.
struct LowRank {
  Rows u, c;
};

/// L, lower triangular, of L L' = sum q q' + 1e-6 trace / d I over the rows of `queries` [., d].
inline Rows query_factor(const Rows& queries) {
  const std::size_t d = queries[0].size();
  Rows a = gram(queries);
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
  Rows y = centred(x, mean);
  y = weight.empty() ? y : product(y, weight);
  const std::size_t d = y[0].size();
  const Eigen e = eigen(gram(y));
  LowRank out{Rows(y.size(), Vec(rank, 0)), Rows(rank, Vec(d, 0))};
  for (std::size_t r = 0; r < rank; ++r) {
    const Real sigma = std::sqrt(std::max<Real>(e.values[r], 0));
    for (std::size_t i = 0; i < y.size(); ++i) {
      out.u[i][r] = sigma > 0 ? dot(y[i], e.vectors[r]) / sigma : 0;
    }
    Vec& row = out.c[r];
    for (std::size_t c = 0; c < d; ++c) {
      row[c] = sigma * e.vectors[r][c];
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
