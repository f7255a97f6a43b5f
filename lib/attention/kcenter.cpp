#include "attention/kcenter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvbench {
namespace {

constexpr Index kLanes = kDistanceLanes;

inline double distance2(const double* a, const float* b, Index d) {
  double acc[kLanes] = {};
  Index t = 0;
  for (; t + kLanes <= d; t += kLanes) {
#pragma omp simd
    for (Index l = 0; l < kLanes; ++l) {
      acc[l] = add_square(a[t + l], b[t + l], acc[l]);
    }
  }
  for (Index l = 0; t < d; ++t, ++l) {
    acc[l] = add_square(a[t], b[t], acc[l]);
  }
  return sum_of_lanes(acc);
}

// One more centre: every row that is strictly nearer to it than to all before becomes its own.
// Returns the place of the row that is now farthest, the lowest of equals.
Index admit(MatrixView points, std::span<const Index> rows, Index center,
            std::vector<double>& scratch, KCenter& out) {
  const Index d = points.cols;
  const float* c = points.row(rows[center]);
  std::copy_n(c, d, scratch.begin());
  const auto number = static_cast<Index>(out.centers.size());
  out.centers.push_back(center);
  double largest = -1.0;
  std::size_t farthest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double x = distance2(scratch.data(), points.row(rows[i]), d);
    if (x < out.squared[i]) {
      out.squared[i] = x;
      out.nearest[i] = number;
    }
    if (out.squared[i] > largest) {
      largest = out.squared[i];
      farthest = i;
    }
  }
  out.nearest[center] = number;
  out.radius.push_back(std::sqrt(largest));
  return static_cast<Index>(farthest);
}

}  // namespace

double squared_distance(const double* a, const float* b, Index d) {
  return distance2(a, b, d);
}

NearestRow nearest_row(const double* x, MatrixView rows) {
  NearestRow best{-1, std::numeric_limits<double>::infinity()};
  for (Index i = 0; i < rows.rows; ++i) {
    const double squared = distance2(x, rows.row(i), rows.cols);
    if (squared < best.squared) {
      best = {i, squared};
    }
  }
  return best;
}

KCenter k_center(MatrixView points, std::span<const Index> rows, Index k, Index first) {
  const std::size_t m = rows.size();
  const auto count = static_cast<std::size_t>(std::clamp<Index>(k, 0, static_cast<Index>(m)));
  KCenter out;
  out.nearest.assign(m, 0);
  out.squared.assign(m, std::numeric_limits<double>::infinity());
  std::vector<double> scratch(points.cols);
  Index next = first;
  while (out.centers.size() < count && (out.radius.empty() || out.radius.back() > 0.0)) {
    next = admit(points, rows, next, scratch, out);
  }
  admit_lowest(out, count);
  return out;
}

void admit_lowest(KCenter& out, std::size_t count) {
  if (out.centers.size() >= count) {
    return;
  }
  std::vector<bool> chosen(out.nearest.size(), false);
  for (const Index c : out.centers) {
    chosen[c] = true;
  }
  for (std::size_t i = 0; i < chosen.size() && out.centers.size() < count; ++i) {
    if (!chosen[i]) {
      out.nearest[i] = static_cast<Index>(out.centers.size());
      out.centers.push_back(static_cast<Index>(i));
      out.radius.push_back(0.0);
    }
  }
}

Index farthest_from_mean(MatrixView points, std::span<const Index> rows) {
  const auto d = static_cast<std::size_t>(points.cols);
  std::vector<double> mean(d, 0.0);
  for (const Index i : rows) {
    const float* row = points.row(i);
    for (std::size_t t = 0; t < d; ++t) {
      mean[t] += static_cast<double>(row[t]);
    }
  }
  for (double& x : mean) {
    x /= static_cast<double>(std::max<std::size_t>(rows.size(), 1));
  }
  double largest = -1.0;
  std::size_t farthest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double x = distance2(mean.data(), points.row(rows[i]), points.cols);
    if (x > largest) {
      largest = x;
      farthest = i;
    }
  }
  return static_cast<Index>(farthest);
}

}  // namespace kvbench
