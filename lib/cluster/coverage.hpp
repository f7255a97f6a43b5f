// How well k tokens cover all others: the radius of greedy k-center over the number of centres.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", section on clusterability: greedy k-center [Gonzalez 1985] on keys
//     and values, 16 centres shown in t-SNE pictures.
// The k-center itself is attention/kcenter.hpp, below this folder, as a method needs it too.
#pragma once

#include <vector>

#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

/// One point of a coverage curve.
struct CoveragePoint {
  Index k = 0;              ///< centres, >= 1
  double radius = 0.0;      ///< largest Euclidean distance of any row to its nearest centre, in the
                            ///< trace's own units; at most twice the best that k centres allow
  double radius_rel = 0.0;  ///< radius / radius at k = 1, in [0, 1]; 0 where both are 0
  Index center = 0;         ///< row of the k-th centre

  friend bool operator==(const CoveragePoint&, const CoveragePoint&) = default;
};

struct Coverage {
  std::vector<CoveragePoint> curve;  ///< ascending k
  std::vector<Index> centers;        ///< rows, in the order in which they were chosen
};

/// The k of a curve over n >= 1 rows: the powers of two up to min(n / 2, max_k), at least 1, and
/// min(centers, n). Ascending, each once.
std::vector<Index> coverage_sizes(Index n, Index centers, Index max_k);

/// Greedy k-center of all rows (at least one), first centre row 0, at coverage_sizes(...), with the
/// first min(centers, rows) centres. Time O(k n d) for the largest k, memory O(n + d) beside the
/// points.
Coverage coverage(const RowSet& points, Index centers, Index max_k);

}  // namespace kvbench
