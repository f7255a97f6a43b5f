// What kvbench cluster reports, by the definitions: norms, the growth exponent,
// principal components by Jacobi rotations. Radii and counts: reference/cluster.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "reference/reference.hpp"

namespace reference {

/// Eigenvalues of a symmetric matrix, falling, and a unit eigenvector of each.
struct Eigen {
  Vec values;
  Rows vectors;
};

struct Line {
  Real slope, intercept;
};

// Cramer's rule on the normal equations of y = slope x + intercept.
inline Line fit(const std::vector<std::pair<Index, Index>>& points) {
  Real n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [a, b] : points) {
    const Real x = std::log(static_cast<Real>(a));
    const Real y = std::log(static_cast<Real>(b));
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  const Real det = n * sxx - sx * sx;
  return {(n * sxy - sx * sy) / det, (sxx * sy - sx * sxy) / det};
}

/// Euclidean norm of each row.
inline Vec norms(const Rows& rows) {
  Vec out;
  for (const Vec& row : rows) {
    out.push_back(std::sqrt(dot(row, row)));
  }
  return out;
}

/// Slope of the least-squares line through (log x, log y), from the normal equations.
inline Real log_log_slope(const std::vector<std::pair<Index, Index>>& points) {
  return fit(points).slope;
}

/// Share of the variance of log y that this line explains: 1 - residual / total.
inline Real log_log_r2(const std::vector<std::pair<Index, Index>>& points) {
  const Line line = fit(points);
  Real mean = 0;
  for (const auto& [a, b] : points) {
    mean += std::log(static_cast<Real>(b)) / static_cast<Real>(points.size());
  }
  Real residual = 0, total = 0;
  for (const auto& [a, b] : points) {
    const Real y = std::log(static_cast<Real>(b));
    const Real off = y - line.slope * std::log(static_cast<Real>(a)) - line.intercept;
    residual += off * off;
    total += (y - mean) * (y - mean);
  }
  return 1 - residual / total;
}

/// Covariance of the rows' columns, divided by the number of rows.
inline Rows covariance(const Rows& rows) {
  Rows out = gram(centred(rows, row_mean(rows)));
  for (Vec& row : out) {
    for (Real& x : row) {
      x /= static_cast<Real>(rows.size());
    }
  }
  return out;
}

inline Eigen eigen(Rows matrix) {
  const std::size_t d = matrix.size();
  Rows v(d, Vec(d, 0));  // columns are the vectors
  for (std::size_t i = 0; i < d; ++i) {
    v[i][i] = 1;
  }
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::size_t p = 0; p < d; ++p) {
      for (std::size_t q = p + 1; q < d; ++q) {
        if (matrix[p][q] == 0) {
          continue;
        }
        const Real angle = std::atan2(2 * matrix[p][q], matrix[q][q] - matrix[p][p]) / 2;
        const Real c = std::cos(angle);
        const Real s = std::sin(angle);
        for (std::size_t i = 0; i < d; ++i) {  // columns p and q
          const Real a = matrix[i][p];
          const Real b = matrix[i][q];
          matrix[i][p] = c * a - s * b;
          matrix[i][q] = s * a + c * b;
          const Real e = v[i][p];
          const Real f = v[i][q];
          v[i][p] = c * e - s * f;
          v[i][q] = s * e + c * f;
        }
        for (std::size_t i = 0; i < d; ++i) {  // rows p and q
          const Real a = matrix[p][i];
          const Real b = matrix[q][i];
          matrix[p][i] = c * a - s * b;
          matrix[q][i] = s * a + c * b;
        }
      }
    }
  }
  std::vector<std::size_t> order(d);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return matrix[a][a] > matrix[b][b]; });
  Eigen out;
  for (const std::size_t i : order) {
    out.values.push_back(matrix[i][i]);
    out.vectors.emplace_back();
    for (std::size_t t = 0; t < d; ++t) {
      out.vectors.back().push_back(v[t][i]);
    }
  }
  return out;
}

}  // namespace reference
