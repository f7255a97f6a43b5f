// The online delta-cover on a machine: the launches around cover_kernels.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "attention/cover_kernels.hpp"
#include "attention/delta_cover.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// The largest x whose correctly rounded square root is at most `delta`, so that squares can be
/// compared in its stead; NaN of NaN. A few steps from delta^2, as roots rise with their squares.
inline double largest_square_within(double delta) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x = delta * delta;
  while (std::sqrt(x) > delta) {
    x = std::nextafter(x, 0.0);
  }
  while (x < kInfinity && std::sqrt(std::nextafter(x, kInfinity)) <= delta) {
    x = std::nextafter(x, kInfinity);
  }
  return x;
}

/// The cover that these nearest representatives tell: `cluster` and `squared` of every row up to
/// the last, and, where the stream stopped, of the row that it stopped at.
inline Cover told_cover(std::vector<Index> cluster, std::span<const double> squared,
                        bool complete) {
  Cover out;
  out.complete = complete;
  if (!complete) {
    cluster.pop_back();
    out.smallest_open = std::sqrt(squared.back());
  }
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    const double distance = std::sqrt(squared[i]);
    // Clusters are numbered as they open.
    if (cluster[i] == static_cast<Index>(out.representatives.size())) {
      out.representatives.push_back(static_cast<Index>(i));
      out.smallest_open = std::min(out.smallest_open, distance);
    } else {
      out.largest_join = std::max(out.largest_join, distance);
    }
  }
  out.cluster = std::move(cluster);
  return out;
}

/// delta_cover on a machine, equal to the CPU's to the bit. `points` [., d] lie in the machine's
/// memory. Two launches per 64 rows; the host waits at the end, and now and then to see whether the
/// stream has stopped. Memory O(m), whatever scratch_bytes is.
template <class M>
Cover delta_cover_on(M& machine, const float* points, Index d, std::span<const Index> rows,
                     double delta, Index max_clusters) {
  constexpr Index kBatchesUnwatched = 64;
  const auto m = static_cast<Index>(rows.size());
  if (m == 0) {
    return {};
  }
  const Index most = std::clamp<Index>(max_clusters, 0, m);
  const Array<Index, M> places(machine, rows);
  Array<CoverProgress, M> progress(machine, 1);
  const Array<Index, M> representatives(machine, most);
  const Array<NearCluster, M> nearest(machine, Index{kCoverBatch} * kCoverParts);
  const Array<double, M> within(machine, Index{kCoverBatch} * kCoverBatch);
  const Array<Index, M> cluster(machine, m);
  const Array<double, M> squared(machine, m);
  CoverProgress now{0, -1};
  progress.put(std::span(&now, 1));
  const CoverState state{points,
                         places.data(),
                         m,
                         d,
                         largest_square_within(delta),
                         most,
                         progress.data(),
                         representatives.data(),
                         nearest.data(),
                         within.data(),
                         cluster.data(),
                         squared.data()};
  Index launched = 0;
  for (Index begin = 0; begin < m && now.stopped < 0; begin += kCoverBatch) {
    machine.launch(CoverDistances{state, begin}, CoverDistances::launch_blocks());
    machine.launch(CoverSettle{state, begin}, 1);
    if (++launched % kBatchesUnwatched == 0) {
      progress.get(std::span(&now, 1));
    }
  }
  progress.get(std::span(&now, 1));
  const auto seen = static_cast<std::size_t>(now.stopped < 0 ? m : now.stopped + 1);
  std::vector<Index> host_cluster(seen);
  std::vector<double> host_squared(seen);
  cluster.get(host_cluster);
  squared.get(host_squared);
  return told_cover(std::move(host_cluster), host_squared, now.stopped < 0);
}

}  // namespace kvbench
