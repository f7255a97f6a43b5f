#include "reference/kmeans.hpp"

namespace reference {
namespace {

Real squared(const Vec& a, const Vec& b) {
  Real sum = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    sum += (a[t] - b[t]) * (a[t] - b[t]);
  }
  return sum;
}

}  // namespace

Vec mean_of(const Rows& rows, const std::vector<Index>& members) {
  Vec out(rows[0].size(), 0);
  for (std::size_t t = 0; t < out.size(); ++t) {
    for (const Index i : members) {
      out[t] += rows[i][t];
    }
    out[t] /= static_cast<Real>(members.size());
  }
  return out;
}

std::vector<std::vector<Index>> lloyd(const Rows& rows, const std::vector<Index>& start,
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
