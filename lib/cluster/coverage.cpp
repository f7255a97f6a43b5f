#include "cluster/coverage.hpp"

#include <algorithm>

namespace kvbench {
std::vector<Index> coverage_sizes(Index n, Index centers, Index max_k) {
  std::vector<Index> out{1, std::clamp<Index>(centers, 1, n)};
  for (Index k = 2; k <= std::min(n / 2, max_k); k *= 2) {
    out.push_back(k);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Coverage coverage(const RowSet& points, Index centers, Index max_k) {
  const std::vector<Index> sizes = coverage_sizes(points.count(), centers, max_k);
  const KCenter found = points.k_center(sizes.back());
  Coverage out;
  const double first = found.radius.front();
  for (const Index k : sizes) {
    const auto last = static_cast<std::size_t>(k) - 1;
    const double radius = found.radius[last];
    out.curve.push_back({k, radius, first > 0.0 ? radius / first : 0.0, found.centers[last]});
  }
  const auto shown = std::clamp<Index>(centers, 1, points.count());
  out.centers.assign(found.centers.begin(), found.centers.begin() + shown);
  return out;
}

}  // namespace kvbench
