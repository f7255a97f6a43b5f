// Clustering by its definitions: everything recomputed from the rows in long double, no state.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/kmeans.hpp"

namespace reference {

inline constexpr Real kInfinity = std::numeric_limits<Real>::infinity();

inline Real distance(const Vec& a, const Vec& b) {
  return std::sqrt(squared(a, b));
}

inline Real to_nearest(const Rows& rows, Index i, const std::vector<Index>& centers) {
  Real best = kInfinity;
  for (const Index c : centers) {
    best = std::min(best, distance(rows[i], rows[c]));
  }
  return best;
}

/// Largest distance of any row to its nearest among `centers`.
inline Real radius(const Rows& rows, const std::vector<Index>& centers) {
  Real worst = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    worst = std::max(worst, to_nearest(rows, static_cast<Index>(i), centers));
  }
  return worst;
}

/// Greedy k-center: after the first, always the row farthest from all centres so far, none twice,
/// ties to the lowest.
inline std::vector<Index> greedy_centers(const Rows& rows, Index k, Index first) {
  std::vector<Index> centers;
  while (static_cast<Index>(centers.size()) < k && centers.size() < rows.size()) {
    if (centers.empty()) {
      centers.push_back(first);
      continue;
    }
    Index best = -1;
    for (Index i = 0; i < static_cast<Index>(rows.size()); ++i) {
      const bool taken = std::find(centers.begin(), centers.end(), i) != centers.end();
      if (!taken && (best < 0 || to_nearest(rows, i, centers) > to_nearest(rows, best, centers))) {
        best = i;
      }
    }
    centers.push_back(best);
  }
  return centers;
}

/// Number (in `centers`) of each row's nearest centre, ties to the earlier, a centre its own.
inline std::vector<Index> nearest_centers(const Rows& rows, const std::vector<Index>& centers) {
  std::vector<Index> out;
  for (Index i = 0; i < static_cast<Index>(rows.size()); ++i) {
    const auto own = std::find(centers.begin(), centers.end(), i);
    Index best = own - centers.begin();
    if (own == centers.end()) {
      best = 0;
      for (Index c = 1; c < static_cast<Index>(centers.size()); ++c) {
        if (distance(rows[i], rows[centers[c]]) < distance(rows[i], rows[centers[best]])) {
          best = c;
        }
      }
    }
    out.push_back(best);
  }
  return out;
}

/// The smallest radius of any k rows as centres, by trying all subsets.
inline Real best_radius(const Rows& rows, Index k) {
  Real best = kInfinity;
  const unsigned n = static_cast<unsigned>(rows.size());
  for (unsigned subset = 0; subset < (1U << n); ++subset) {
    std::vector<Index> centers;
    for (unsigned i = 0; i < n; ++i) {
      if ((subset >> i & 1U) != 0) {
        centers.push_back(static_cast<Index>(i));
      }
    }
    if (static_cast<Index>(centers.size()) == k) {
      best = std::min(best, radius(rows, centers));
    }
  }
  return best;
}

/// How many different clusters there are.
inline Index cluster_count(const std::vector<Index>& clusters) {
  return static_cast<Index>(std::set<Index>(clusters.begin(), clusters.end()).size());
}

/// Algorithm 1's clusters: cluster of each row in order; the representative of cluster c is the
/// first row of it.
inline std::vector<Index> online_clusters(const Rows& rows, Real delta) {
  std::vector<Index> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Index best = -1;
    Real least = kInfinity;
    const Index before = cluster_count(out);
    for (Index c = 0; c < before; ++c) {
      const auto first = std::find(out.begin(), out.end(), c) - out.begin();
      const Real d = distance(rows[i], rows[first]);
      if (d < least) {
        least = d;
        best = c;
      }
    }
    out.push_back(best >= 0 && least <= delta ? best : before);
  }
  return out;
}

/// All distances between two rows, and 0, ascending, each once.
inline Vec all_distances(const Rows& rows) {
  std::set<Real> out = {0};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      out.insert(distance(rows[i], rows[j]));
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace reference
