#include "cluster/coverage.hpp"

#include <algorithm>
#include <numeric>

#include "attention/device_rows.hpp"
#include "attention/kcenter.hpp"

namespace kvbench {
namespace {

KCenter centers_of_all(MatrixView points, Index k, const DeviceRows* device) {
  if (device != nullptr) {
    return device->k_center(k);
  }
  std::vector<Index> rows(static_cast<std::size_t>(points.rows));
  std::iota(rows.begin(), rows.end(), Index{0});
  return k_center(points, rows, k);
}

}  // namespace

std::vector<Index> coverage_sizes(Index n, Index centers, Index max_k) {
  std::vector<Index> out{1, std::clamp<Index>(centers, 1, n)};
  for (Index k = 2; k <= std::min(n / 2, max_k); k *= 2) {
    out.push_back(k);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Coverage coverage(MatrixView points, Index centers, Index max_k, const DeviceRows* device) {
  const std::vector<Index> sizes = coverage_sizes(points.rows, centers, max_k);
  const KCenter found = centers_of_all(points, sizes.back(), device);
  Coverage out;
  const double first = found.radius.front();
  for (const Index k : sizes) {
    const auto last = static_cast<std::size_t>(k) - 1;
    const double radius = found.radius[last];
    out.curve.push_back({k, radius, first > 0.0 ? radius / first : 0.0, found.centers[last]});
  }
  const auto shown = std::clamp<Index>(centers, 1, points.rows);
  out.centers.assign(found.centers.begin(), found.centers.begin() + shown);
  return out;
}

}  // namespace kvbench
