#include "attention/online_clusters.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/kcenter.hpp"

namespace kvbench {
namespace {

class CpuClusters final : public ClusterStream {
 public:
  CpuClusters(MatrixView points, std::span<const Index> rows, double delta)
      : points_(points), rows_(rows.begin(), rows.end()), clusters_(points.cols, delta) {}

  Index next() override { return clusters_.add(points_.row_span(rows_.at(next_++))).cluster; }

 private:
  MatrixView points_;
  std::vector<Index> rows_;
  OnlineClusters clusters_;
  std::size_t next_ = 0;
};

class KnownClusters final : public ClusterStream {
 public:
  explicit KnownClusters(std::vector<Index> cluster) : cluster_(std::move(cluster)) {}

  Index next() override { return cluster_.at(next_++); }

 private:
  std::vector<Index> cluster_;
  std::size_t next_ = 0;
};

}  // namespace

OnlineClusters::OnlineClusters(Index d, double delta) : d_(d), delta_(delta), key_(d) {}

OnlineClusters::Joined OnlineClusters::add(std::span<const float> key) {
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

Clusters online_clusters(MatrixView points, std::span<const Index> rows, double delta,
                         Index max_clusters) {
  Clusters out;
  OnlineClusters clusters(points.cols, delta);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const OnlineClusters::Joined joined = clusters.add(points.row_span(rows[i]));
    if (joined.opened) {
      out.smallest_open = std::min(out.smallest_open, joined.distance);
      if (clusters.clusters() > max_clusters) {
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

std::unique_ptr<ClusterStream> cluster_stream(MatrixView points, std::span<const Index> rows,
                                              double delta) {
  return std::make_unique<CpuClusters>(points, rows, delta);
}

std::unique_ptr<ClusterStream> cluster_stream(Clusters known) {
  return std::make_unique<KnownClusters>(std::move(known.cluster));
}

}  // namespace kvbench
