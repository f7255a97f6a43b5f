#include "cluster/pca.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/decompositions.hpp"

namespace kvbench {
namespace {

// Fixes the arbitrary sign, so that figures do not flip between builds.
void fix_sign(double* component, Index d) {
  const double* largest = std::max_element(
      component, component + d, [](double a, double b) { return std::abs(a) < std::abs(b); });
  if (*largest < 0.0) {
    std::transform(component, component + d, component, [](double x) { return -x; });
  }
}

}  // namespace

Pca principal_components(const RowSet& points, Index count) {
  RowMoments moments = points.moments();
  Pca out;
  out.mean = std::move(moments.mean);
  out.d = std::ssize(out.mean);
  const SymmetricEigen eigen =
      symmetric_eigen(Eigen::Map<const RowMajorMatrix>(moments.covariance.data(), out.d, out.d));
  const Index kept = std::min(count, out.d);
  out.components.resize(kept * out.d);
  for (Index c = 0; c < kept; ++c) {
    const Index from = out.d - 1 - c;
    // Rounding may make a variance of 0 negative.
    out.variance.push_back(std::max(eigen.values[from], 0.0));
    double* component = out.components.data() + c * out.d;
    Eigen::Map<Eigen::VectorXd>(component, out.d) = eigen.vectors.col(from);
    fix_sign(component, out.d);
  }
  return out;
}

Matrix project(const Pca& pca, MatrixView points, std::span<const Index> rows) {
  Matrix out(static_cast<Index>(rows.size()), pca.count());
  std::vector<double> centred(pca.d);
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

Spectrum spectrum(const RowSet& rows, Index width) {
  const std::vector<double> variances = principal_components(rows, width).variance;
  const double sum = std::accumulate(variances.begin(), variances.end(), 0.0);
  Spectrum out;
  if (!(sum > 0.0)) {
    return out;
  }
  double squares = 0.0;
  double largest = 0.0;
  for (const double v : variances) {
    squares += v * v;
    if (largest < kSpectrumShare * sum) {
      largest += v;
      ++out.dims_90;
    }
  }
  out.participation = sum * sum / squares;
  out.largest_share = variances.front() / sum;
  return out;
}

}  // namespace kvbench
