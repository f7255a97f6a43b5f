// Greedy k-center over rows of a matrix, and the Euclidean distance that it and the online
// clusters share.
// [1] Gonzalez, "Clustering to minimize the maximum intercluster distance", Theoretical Computer
//     Science 38, 1985; the same heuristic in Dyer and Frieze, "A simple heuristic for the
//     p-centre problem", Operations Research Letters 3, 1985.
// The radius is at most twice the best possible for as many centres.
//
// Distances are computed from differences, since |a|^2 + |b|^2 - 2<a,b> cancels where keys share a
// large offset. The order of summation is fixed: channel t is added to float64 partial sum t % 8 by
// one FMA, t ascending, and the eight sums are added as a tree. Eight lanes vectorise along a row
// without a transposed copy. A GPU thread computes the same bits. The CPU skips rows that float32
// rules out (attention/float32_bounds.hpp).
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Partial sums of one distance: two AVX2 registers of float64.
inline constexpr Index kDistanceLanes = 8;

/// acc + (a - b)^2, by one FMA.
KVB_HD inline double add_square(double a, float b, double acc) {
  const double diff = a - static_cast<double>(b);
  return std::fma(diff, diff, acc);
}

KVB_HD inline double sum_of_lanes(const double* acc) {
  return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

/// Squared Euclidean distance of `a` [d] and `b` [d], in float64, in the order above.
double squared_distance(const double* a, const float* b, Index d);
double squared_distance(const float* a, const float* b, Index d);

/// The centres of m rows. Rows are named by their index in `rows`.
struct KCenter {
  std::vector<Index> centers;   ///< [k] in the order of choice
  std::vector<double> radius;   ///< [k] largest distance of a row to its nearest centre after j + 1
                                ///< centres; never increases
  std::vector<Index> nearest;   ///< [m] index in `centers` of the nearest centre, ties to the
                                ///< earlier; a centre's own index, even if an earlier one equals it
  std::vector<double> squared;  ///< [m] squared distance to it
};

/// Chooses min(k, rows.size()) centres: first `first`, then repeatedly the row farthest from all
/// centres that is not a centre; ties go to the lowest index.
/// `rows`: rows of `points`, in any order. 0 <= first < rows.size() unless `rows` is empty.
/// Time O(k m d), memory O(m + d) beside the points.
KCenter k_center(MatrixView points, std::span<const Index> rows, Index k, Index first = 0);

/// Ends k_center where every row equals a centre: all others are equally far, so those of lowest
/// index follow until `out` has `count` centres.
void admit_lowest(KCenter& out, std::size_t count);

/// Index of the row farthest from the rows' mean (float64, summed in the order of `rows`); ties go
/// to the lowest index. 0 of no rows.
Index farthest_from_mean(MatrixView points, std::span<const Index> rows);

}  // namespace kvbench
