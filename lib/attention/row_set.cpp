#include "attention/row_set.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvbench {
namespace {

constexpr Index kCentredRows = 512;  // rows that are added to the covariance at once

class CpuRows final : public RowSet {
 public:
  CpuRows(MatrixView points, std::span<const Index> rows) : points_(points), rows_(rows) {}
  explicit CpuRows(MatrixView points) : points_(points), all_(points.rows) {
    std::iota(all_.begin(), all_.end(), Index{0});
    rows_ = all_;
  }

  Index count() const override { return static_cast<Index>(rows_.size()); }
  KCenter k_center(Index k, Index first) const override {
    return kvbench::k_center(points_, rows_, k, first);
  }
  Clusters online_clusters(double delta, Index max_clusters) const override {
    return kvbench::online_clusters(points_, rows_, delta, max_clusters);
  }
  std::vector<double> norms() const override {
    std::vector<double> out;
    out.reserve(rows_.size());
    for (const Index i : rows_) {
      double sum = 0.0;
      for (const float x : points_.row_span(i)) {
        sum += static_cast<double>(x) * static_cast<double>(x);
      }
      out.push_back(std::sqrt(sum));
    }
    return out;
  }
  RowMoments moments() const override {
    const auto d = static_cast<std::size_t>(points_.cols);
    const auto n = static_cast<double>(rows_.size());
    RowMoments out{std::vector<double>(d, 0.0), std::vector<double>(d * d, 0.0)};
    for (const Index i : rows_) {
      for (std::size_t t = 0; t < d; ++t) {
        out.mean[t] += static_cast<double>(points_.row(i)[t]);
      }
    }
    for (double& x : out.mean) {
      x /= n;
    }
    Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(points_.cols, points_.cols);
    Eigen::MatrixXd block;
    const auto count = static_cast<Index>(rows_.size());
    for (Index begin = 0; begin < count; begin += kCentredRows) {
      const Index taken = std::min(kCentredRows, count - begin);
      block.resize(points_.cols, taken);
      for (Index i = 0; i < taken; ++i) {
        const float* row = points_.row(rows_[begin + i]);
        for (Index t = 0; t < points_.cols; ++t) {
          block(t, i) = static_cast<double>(row[t]) - out.mean[t];
        }
      }
      sum.selfadjointView<Eigen::Lower>().rankUpdate(block);
    }
    for (std::size_t t = 0; t < d; ++t) {
      for (std::size_t u = 0; u <= t; ++u) {
        out.covariance[t * d + u] = sum(static_cast<Index>(t), static_cast<Index>(u)) / n;
      }
    }
    return out;
  }

 private:
  MatrixView points_;
  std::vector<Index> all_;
  std::span<const Index> rows_;
};

}  // namespace

std::unique_ptr<RowSet> cpu_rows(MatrixView points, std::span<const Index> rows) {
  return std::make_unique<CpuRows>(points, rows);
}

std::unique_ptr<RowSet> cpu_rows(MatrixView points) {
  return std::make_unique<CpuRows>(points);
}

double smallest_delta(const RowSet& rows, Index k) {
  const KCenter centers = rows.k_center(k);
  const double radius = centers.radius.empty() ? 0.0 : centers.radius.back();
  if (radius == 0.0) {
    return 0.0;  // at most k distinct keys
  }
  // k + 1 keys lie at least `radius` apart, so two of them share one of k clusters: 2 delta >=
  // radius. Representatives more than 2 radius apart have distinct nearest centres, so there are at
  // most k. Both hold up to rounding, so both ends are checked.
  double good = 2.0 * radius;
  Clusters found = rows.online_clusters(good, k);
  while (!found.complete) {
    good *= 2.0;
    found = rows.online_clusters(good, k);
  }
  good = found.largest_join;
  // No delta below `open` suffices: all of them give the run that failed.
  double open = 0.0;
  double next = 0.5 * radius;
  while (open < good) {
    found = rows.online_clusters(next, k);
    if (found.complete) {
      good = found.largest_join;
    } else {
      open = found.smallest_open;
    }
    next = open + 0.5 * (good - open);
    // Between neighbouring numbers the middle is one of them, and `good` is known to suffice.
    next = next < good ? next : open;
  }
  return good;
}

}  // namespace kvbench
