#include "attention/delta_cover.hpp"

#include <algorithm>
#include <cmath>

#include "attention/device.hpp"
#include "attention/kcenter.hpp"

namespace kvbench {

DeltaCover::DeltaCover(Index d, double delta)
    : d_(d), delta_(delta), key_(static_cast<std::size_t>(d)) {}

DeltaCover::Joined DeltaCover::add(std::span<const float> key) {
  std::copy(key.begin(), key.end(), key_.begin());
  const NearestRow nearest =
      nearest_row(key_.data(), MatrixView{representatives_.data(), clusters_, d_});
  Joined out{nearest.row, false, std::sqrt(nearest.squared)};
  if (nearest.row < 0 || !(out.distance <= delta_)) {
    representatives_.insert(representatives_.end(), key.begin(), key.end());
    out.cluster = clusters_++;
    out.opened = true;
  }
  return out;
}

Cover delta_cover(MatrixView points, std::span<const Index> rows, double delta, Index max_clusters,
                  const DeviceHead* device) {
  if (device != nullptr) {
    return device->delta_cover(points, rows, delta, max_clusters);
  }
  Cover out;
  DeltaCover cover(points.cols, delta);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const DeltaCover::Joined joined = cover.add(points.row_span(rows[i]));
    if (joined.opened) {
      out.smallest_open = std::min(out.smallest_open, joined.distance);
      if (cover.clusters() > max_clusters) {
        out.complete = false;
        return out;
      }
      out.representatives.push_back(static_cast<Index>(i));
    } else {
      out.largest_join = std::max(out.largest_join, joined.distance);
    }
    out.cluster.push_back(joined.cluster);
  }
  return out;
}

double smallest_delta(MatrixView points, std::span<const Index> rows, Index k,
                      const DeviceHead* device) {
  const KCenter centers = k_center(points, rows, k, 0, device);
  const double radius = centers.radius.empty() ? 0.0 : centers.radius.back();
  if (radius == 0.0) {
    return 0.0;  // at most k different keys
  }
  // k + 1 keys lie at least `radius` apart, so two of them share one of k clusters: 2 delta >=
  // radius. And representatives more than 2 radius apart have a centre each: at most k of them.
  // Both hold but for rounding, so both ends are tried before they are relied on.
  double good = 2.0 * radius;
  Cover cover = delta_cover(points, rows, good, k, device);
  while (!cover.complete) {
    good *= 2.0;
    cover = delta_cover(points, rows, good, k, device);
  }
  good = cover.largest_join;
  // Below `open` nothing suffices: a failed run and all that do the same end there.
  double open = 0.0;
  double next = 0.5 * radius;
  while (open < good) {
    cover = delta_cover(points, rows, next, k, device);
    if (cover.complete) {
      good = cover.largest_join;
    } else {
      open = cover.smallest_open;
    }
    next = open + 0.5 * (good - open);
    // Between neighbouring values the middle is one of them, and `good` is known.
    next = next < good ? next : open;
  }
  return good;
}

}  // namespace kvbench
