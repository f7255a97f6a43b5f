#include "attention/online_clusters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/float32_bounds.hpp"
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

OnlineClusters::OnlineClusters(Index d, double delta) : d_(d), delta_(delta) {}

OnlineClusters::Joined OnlineClusters::add(std::span<const float> key) {
  for (Index b = 0; b < clusters_; b += kSide) {
    float sums[kSide] = {};
    for (Index t = 0; t < d_; ++t) {
      const float* channel = transposed_.data() + b * d_ + t * kSide;
      const float x = key[t];
#pragma omp simd
      for (Index l = 0; l < kSide; ++l) {
        const float difference = channel[l] - x;
        sums[l] = std::fma(difference, difference, sums[l]);
      }
    }
#pragma omp simd
    for (Index l = 0; l < kSide; ++l) {
      rough_[b + l] = -sums[l];
    }
  }
  const std::span<const float> rough(rough_.data(), static_cast<std::size_t>(clusters_));
  const float limit = farther_above(static_cast<double>(-largest_of(rough)), d_);
  double squared = std::numeric_limits<double>::infinity();
  Index nearest = -1;
  visit_at_least(rough, -limit, [&](std::size_t c) {
    const auto i = static_cast<Index>(c);
    const double x = squared_distance(representatives_.data() + i * d_, key.data(), d_);
    if (x < squared) {
      squared = x;
      nearest = i;
    }
  });
  Joined out{nearest, false, std::sqrt(squared)};
  if (nearest < 0 || !(out.distance <= delta_)) {
    out.cluster = clusters_;
    out.opened = true;
    open(key);
  }
  return out;
}

void OnlineClusters::open(std::span<const float> key) {
  representatives_.insert(representatives_.end(), key.begin(), key.end());
  if (clusters_ % kSide == 0) {
    transposed_.resize((clusters_ + kSide) * d_, 0.0F);
    rough_.resize(clusters_ + kSide);
  }
  float* to = transposed_.data() + clusters_ / kSide * kSide * d_ + clusters_ % kSide;
  for (Index t = 0; t < d_; ++t) {
    to[t * kSide] = key[t];
  }
  ++clusters_;
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
