// Coverage of tokens by k centres: the radius of greedy k-center.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", section on clusterability: greedy k-center [Gonzalez 1985] on keys
//     and values, 16 centres shown in t-SNE pictures.
#pragma once

#include <vector>

#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

/// One point of a coverage curve.
struct CoveragePoint {
  Index k = 0;              ///< centres, >= 1
  double radius = 0.0;      ///< largest Euclidean distance of a row to its nearest centre, in the
                            ///< trace's units; at most twice the optimum for k centres
  double radius_rel = 0.0;  ///< radius / radius at k = 1, in [0, 1]; 0 if both are 0
  Index center = 0;         ///< row of the k-th centre

  friend bool operator==(const CoveragePoint&, const CoveragePoint&) = default;
};

struct Coverage {
  std::vector<CoveragePoint> curve;  ///< ascending k
  std::vector<Index> centers;        ///< rows, in the order of choice
};

/// The k of a curve over n >= 1 rows: 1, powers of two up to min(n / 2, max_k), and min(centers,
/// n). Ascending, distinct.
std::vector<Index> coverage_sizes(Index n, Index centers, Index max_k);

/// Greedy k-center of all rows (at least one) from row 0, at coverage_sizes(...), and its first
/// min(centers, rows) centres. Time O(k n d) for the largest k, memory O(n + d) beside the points.
Coverage coverage(const RowSet& points, Index centers, Index max_k);

}  // namespace kvbench
