// Growth of the number of clusters with the number of tokens: counts of online clusters over
// prefixes of the stream, and the exponent of m ~ n^alpha.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", Definition 1 ((m, delta)-clusterability) and Algorithm 1.
#pragma once

#include <span>
#include <vector>

#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Clusters over the first n_prefix rows of a stream.
struct PrefixCount {
  Index n_prefix = 0;
  Index clusters = 0;

  friend bool operator==(const PrefixCount&, const PrefixCount&) = default;
};

/// Least squares of log m = log c + alpha log n.
struct PowerLaw {
  double alpha = 0.0;  ///< NaN for fewer than two counts; exactly 0 if all counts are equal
  double r2 = 0.0;  ///< variance of log m explained, in [0, 1]; NaN for fewer than two counts, or
                    ///< if all are equal
};

struct DeltaGrowth {
  double delta = 0.0;               ///< Euclidean distance, in the trace's units
  std::vector<PrefixCount> counts;  ///< ascending n_prefix
  PowerLaw law;
};

/// Prefixes of a stream of n >= 1 rows: powers of two from 16 below n, and n.
std::vector<Index> stream_prefixes(Index n);

PowerLaw fit_power_law(std::span<const PrefixCount> counts);

/// Counts online clusters (attention/online_clusters.hpp) of all rows, in order, at
/// stream_prefixes. Prefixes that need more than `max_clusters` >= 1 are omitted. Time O(n m d),
/// memory O(m d), m at most max_clusters.
DeltaGrowth delta_growth(const RowSet& points, double delta, Index max_clusters);

}  // namespace kvbench
