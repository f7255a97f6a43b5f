#include "cluster/growth.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvbench {
namespace {

constexpr Index kShortestPrefix = 16;

}  // namespace

std::vector<Index> stream_prefixes(Index n) {
  std::vector<Index> out;
  for (Index prefix = kShortestPrefix; prefix < n; prefix *= 2) {
    out.push_back(prefix);
  }
  out.push_back(n);
  return out;
}

PowerLaw fit_power_law(std::span<const PrefixCount> counts) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (counts.size() < 2) {
    return {kNan, kNan};
  }
  const bool constant = std::all_of(counts.begin(), counts.end(), [&](const PrefixCount& c) {
    return c.clusters == counts.front().clusters;
  });
  if (constant) {
    return {0.0, kNan};
  }
  double mean_x = 0.0;
  double mean_y = 0.0;
  for (const PrefixCount& c : counts) {
    mean_x += std::log(static_cast<double>(c.n_prefix)) / static_cast<double>(counts.size());
    mean_y += std::log(static_cast<double>(c.clusters)) / static_cast<double>(counts.size());
  }
  double xx = 0.0;
  double xy = 0.0;
  double yy = 0.0;
  for (const PrefixCount& c : counts) {
    const double x = std::log(static_cast<double>(c.n_prefix)) - mean_x;
    const double y = std::log(static_cast<double>(c.clusters)) - mean_y;
    xx += x * x;
    xy += x * y;
    yy += y * y;
  }
  // r2 <= 1 up to rounding (Cauchy-Schwarz).
  return {xy / xx, std::min(xy * xy / (xx * yy), 1.0)};
}

DeltaGrowth delta_growth(const RowSet& points, double delta, Index max_clusters) {
  const Clusters found = points.online_clusters(delta, max_clusters);
  DeltaGrowth out;
  out.delta = delta;
  // A stopped run has seen found.cluster.size() rows.
  const auto seen = static_cast<Index>(found.cluster.size());
  for (const Index prefix : stream_prefixes(points.count())) {
    if (prefix <= seen) {
      const auto end =
          std::lower_bound(found.representatives.begin(), found.representatives.end(), prefix);
      out.counts.push_back({prefix, static_cast<Index>(end - found.representatives.begin())});
    }
  }
  out.law = fit_power_law(out.counts);
  return out;
}

}  // namespace kvbench
