// Clustering by its definitions: everything recomputed from the rows in long double, no state.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

Real distance(const Vec& a, const Vec& b);

/// Largest distance of any row to its nearest among `centers`.
Real radius(const Rows& rows, const std::vector<Index>& centers);

/// Greedy k-center: after the first, always the row farthest from all centres so far, none twice,
/// ties to the lowest.
std::vector<Index> greedy_centers(const Rows& rows, Index k, Index first);

/// Number (in `centers`) of each row's nearest centre, ties to the earlier, a centre its own.
std::vector<Index> nearest_centers(const Rows& rows, const std::vector<Index>& centers);

/// The smallest radius of any k rows as centres, by trying all subsets.
Real best_radius(const Rows& rows, Index k);

/// Algorithm 1's clusters: cluster of each row in order; the representative of cluster c is the
/// first row of it.
std::vector<Index> online_clusters(const Rows& rows, Real delta);

/// How many different clusters there are.
Index cluster_count(const std::vector<Index>& clusters);

/// All distances between two rows, and 0, ascending, each once.
Vec all_distances(const Rows& rows);

}  // namespace reference
