#include "cluster/pca.hpp"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "attention/device_rows.hpp"

namespace kvbench {
namespace {

constexpr Index kBlock = 512;  // rows that are centred and added to the covariance at once

// Columns are added in the order of the rows: the same sums whatever the threads.
std::vector<double> column_means(MatrixView points) {
  std::vector<double> mean(static_cast<std::size_t>(points.cols), 0.0);
  for (Index i = 0; i < points.rows; ++i) {
    for (Index t = 0; t < points.cols; ++t) {
      mean[static_cast<std::size_t>(t)] += static_cast<double>(points.row(i)[t]);
    }
  }
  for (double& x : mean) {
    x /= static_cast<double>(points.rows);
  }
  return mean;
}

Eigen::MatrixXd covariance(MatrixView points, const std::vector<double>& mean) {
  const Index d = points.cols;
  Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(d, d);
  Eigen::MatrixXd block;
  for (Index begin = 0; begin < points.rows; begin += kBlock) {
    const Index rows = std::min(kBlock, points.rows - begin);
    block.resize(d, rows);
    for (Index i = 0; i < rows; ++i) {
      const float* row = points.row(begin + i);
      for (Index t = 0; t < d; ++t) {
        block(t, i) = static_cast<double>(row[t]) - mean[static_cast<std::size_t>(t)];
      }
    }
    sum.selfadjointView<Eigen::Lower>().rankUpdate(block);
  }
  return sum / static_cast<double>(points.rows);
}

// The lower triangle, which is all that the solver reads.
Eigen::MatrixXd lower_triangle(const RowMoments& moments) {
  const auto d = static_cast<Index>(moments.mean.size());
  Eigen::MatrixXd out = Eigen::MatrixXd::Zero(d, d);
  for (Index t = 0; t < d; ++t) {
    for (Index u = 0; u <= t; ++u) {
      out(t, u) = moments.covariance[static_cast<std::size_t>(t * d + u)];
    }
  }
  return out;
}

// Either direction is as good; one is chosen, so that a picture does not flip between builds.
void fix_sign(double* component, Index d) {
  const double* most = std::max_element(
      component, component + d, [](double a, double b) { return std::abs(a) < std::abs(b); });
  if (*most < 0.0) {
    std::transform(component, component + d, component, [](double x) { return -x; });
  }
}

}  // namespace

Pca principal_components(MatrixView points, Index count, const DeviceRows* device) {
  Pca out;
  out.d = points.cols;
  Eigen::MatrixXd spread;
  if (device != nullptr) {
    RowMoments moments = device->moments();
    spread = lower_triangle(moments);
    out.mean = std::move(moments.mean);
  } else {
    out.mean = column_means(points);
    spread = covariance(points, out.mean);
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(spread);
  const Index kept = std::min(count, out.d);
  out.components.resize(static_cast<std::size_t>(kept * out.d));
  for (Index c = 0; c < kept; ++c) {
    const Index from = out.d - 1 - c;  // Eigen's values rise
    // A variance of 0 comes out as a rounding error of either sign.
    out.variance.push_back(std::max(solver.eigenvalues()[from], 0.0));
    double* component = out.components.data() + c * out.d;
    for (Index t = 0; t < out.d; ++t) {
      component[t] = solver.eigenvectors()(t, from);
    }
    fix_sign(component, out.d);
  }
  return out;
}

Matrix project(const Pca& pca, MatrixView points, std::span<const Index> rows) {
  Matrix out(static_cast<Index>(rows.size()), pca.count());
  std::vector<double> centred(static_cast<std::size_t>(pca.d));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float* row = points.row(rows[i]);
    for (std::size_t t = 0; t < centred.size(); ++t) {
      centred[t] = static_cast<double>(row[t]) - pca.mean[t];
    }
    for (Index c = 0; c < pca.count(); ++c) {
      const double* component = pca.components.data() + c * pca.d;
      double x = 0.0;
      for (std::size_t t = 0; t < centred.size(); ++t) {
        x += component[t] * centred[t];
      }
      out.row(static_cast<Index>(i))[c] = static_cast<float>(x);
    }
  }
  return out;
}

}  // namespace kvbench
