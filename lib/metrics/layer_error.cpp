#include "metrics/layer_error.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "metrics/error.hpp"

namespace kvbench {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMap =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// Queries and projection rows in float64 at a time: all of them would be large.
constexpr Index kQueries = 256;
constexpr Index kHidden = 128;

// Rows [begin, end) of all matrices side by side, in float64.
void widen(std::span<const Matrix> from, Index begin, Index end, Rows& to) {
  Eigen::Index column = 0;
  for (const Matrix& m : from) {
    to.block(0, column, end - begin, m.cols()) =
        FloatMap(m.row(begin), end - begin, m.cols()).cast<double>();
    column += m.cols();
  }
}

}  // namespace

double projected_square(std::span<const Matrix> x, std::span<const Matrix> w) {
  const Index columns =
      std::accumulate(x.begin(), x.end(), Index{0},
                      [](Index sum, const Matrix& part) { return sum + part.cols(); });
  const Index m = x.front().rows();
  const Index hidden = w.front().rows();
  Rows queries(std::min(m, kQueries), columns);
  Rows weights(std::min(hidden, kHidden), columns);
  Rows product(queries.rows(), weights.rows());
  double sum = 0.0;
  for (Index q0 = 0; q0 < m; q0 += kQueries) {
    const Index rows = std::min(kQueries, m - q0);
    widen(x, q0, q0 + rows, queries);
    for (Index h0 = 0; h0 < hidden; h0 += kHidden) {
      const Index width = std::min(kHidden, hidden - h0);
      widen(w, h0, h0 + width, weights);
      auto block = product.topLeftCorner(rows, width);
      block.noalias() = queries.topRows(rows) * weights.topRows(width).transpose();
      sum += block.squaredNorm();
    }
  }
  return sum;
}

Index projected_square_bytes(Index columns) {
  return 8 * ((kQueries + kHidden) * columns + kQueries * kHidden);
}

LayerError layer_error(double moved, double exact, std::optional<double> residual) {
  LayerError out;
  out.out_rel = relative_size(std::sqrt(moved), std::sqrt(exact));
  if (residual) {
    out.residual_rel = relative_size(std::sqrt(moved), std::sqrt(*residual));
  }
  return out;
}

}  // namespace kvbench
