// Greedy k-center over rows of a matrix, and the Euclidean distance that it and the online
// clusters share.
// [1] Gonzalez, "Clustering to minimize the maximum intercluster distance", Theoretical Computer
//     Science 38, 1985; the same heuristic in Dyer and Frieze, "A simple heuristic for the
//     p-centre problem", Operations Research Letters 3, 1985.
// The radius is at most twice the best possible for as many centres. Here, below both, because the
// clusterability figures and a method use it. Knows no method.
//
// Distances come from differences, never from |a|^2 + |b|^2 - 2<a,b>, whose digits cancel where
// keys share a large offset. The order of summation is fixed: channel t goes to partial sum t % 8
// of float64 by one FMA, t ascending, and the eight are added as a tree; eight because that
// vectorises along a row as it lies, so that no transposed copy is needed. A GPU thread that does
// the same gets the same bits. The CPU asks float32 first which rows cannot be nearer
// (attention/float32_bounds.hpp).
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Partial sums of one distance; two AVX2 registers of float64.
inline constexpr Index kDistanceLanes = 8;

/// acc + (a - b)^2, by one FMA.
KVB_HD inline double add_square(double a, float b, double acc) {
  const double diff = a - static_cast<double>(b);
  return std::fma(diff, diff, acc);
}

/// The tree over the partial sums of one distance.
KVB_HD inline double sum_of_lanes(const double* acc) {
  return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

/// Squared Euclidean distance of `a` [d] and `b` [d], in float64, the order above.
double squared_distance(const double* a, const float* b, Index d);
double squared_distance(const float* a, const float* b, Index d);

/// What greedy k-center found on m rows. Places are indices into the `rows` it was given.
struct KCenter {
  std::vector<Index> centers;   ///< [k] places, in the order in which they were chosen
  std::vector<double> radius;   ///< [k] after j + 1 centres: the largest distance of any row to its
                                ///< nearest centre; never increases
  std::vector<Index> nearest;   ///< [m] number (in `centers`) of the nearest centre, ties to the
                                ///< earlier; a centre belongs to itself, also where an earlier one
                                ///< lies on the same point
  std::vector<double> squared;  ///< [m] squared distance to it
};

/// Chooses min(k, rows.size()) centres: place `first`, then again and again the row farthest from
/// the centres so far that is none of them; ties go to the lowest place.
/// `rows`: row numbers of `points`, any order. 0 <= first < rows.size() where that is not 0.
/// Time O(k m d), memory O(m + d) beside the points.
KCenter k_center(MatrixView points, std::span<const Index> rows, Index k, Index first = 0);

/// Bytes that k_center holds for `rows` rows, what it gives included.
Index k_center_bytes(Index rows);

/// The end of k_center where every row lies on a centre: all that are left are equally far, so the
/// lowest places follow until `out` has `count` centres.
void admit_lowest(KCenter& out, std::size_t count);

/// Place of the row farthest from the rows' mean (float64, summed in the order of `rows`); ties go
/// to the lowest place. 0 of no rows.
Index farthest_from_mean(MatrixView points, std::span<const Index> rows);

}  // namespace kvbench
