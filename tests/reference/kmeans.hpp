// k-means by its definition: everything recomputed from the rows in long double.
#pragma once

#include "reference/reference.hpp"

namespace reference {

inline Real squared(const Vec& a, const Vec& b) {
  Real sum = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    sum += (a[t] - b[t]) * (a[t] - b[t]);
  }
  return sum;
}

/// Mean of the rows with those numbers.
inline Vec mean_of(const Rows& rows, const std::vector<Index>& members) {
  Vec out(rows[0].size(), 0);
  for (std::size_t t = 0; t < out.size(); ++t) {
    for (const Index i : members) {
      out[t] += rows[i][t];
    }
    out[t] /= static_cast<Real>(members.size());
  }
  return out;
}

/// Members (numbers of rows, ascending) of each cluster after `rounds` assignments: of the rows to
/// the nearest centre (ties to the earlier), whose members' means are then the centres. The first
/// centres are the rows `start`. Clusters without a row are gone.
inline std::vector<std::vector<Index>> lloyd(const Rows& rows, const std::vector<Index>& start,
                                             Index rounds) {
  std::vector<std::vector<Index>> clusters;
  for (const Index i : start) {
    clusters.push_back({i});
  }
  for (Index round = 0; round < rounds; ++round) {
    Rows centers;
    for (const std::vector<Index>& members : clusters) {
      centers.push_back(mean_of(rows, members));
    }
    std::vector<std::vector<Index>> next(centers.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::size_t best = 0;
      for (std::size_t c = 0; c < centers.size(); ++c) {
        if (squared(rows[i], centers[c]) < squared(rows[i], centers[best])) {
          best = c;
        }
      }
      next[best].push_back(static_cast<Index>(i));
    }
    clusters.clear();
    for (const std::vector<Index>& members : next) {
      if (!members.empty()) {
        clusters.push_back(members);
      }
    }
  }
  return clusters;
}

}  // namespace reference
