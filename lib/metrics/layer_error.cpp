#include "metrics/layer_error.hpp"

#include <algorithm>
#include <cmath>

#include "attention/inner_products.hpp"
#include "core/vector_sums.hpp"
#include "metrics/error.hpp"

namespace kvbench {
namespace {

// Queries and projection rows in float64 at a time: all of them would be large.
constexpr Index kQueries = 256;
constexpr Index kHidden = 128;

// Rows [begin, begin + count) in float64.
void widen(const Matrix& from, Index begin, Index count, MatrixD& to) {
  to.resize(count, from.cols());
  std::copy_n(from.row(begin), count * from.cols(), to.data());
}

double squared_norm(const MatrixD& m) {
  return dot(m.data(), m.data(), m.rows() * m.cols());
}

}  // namespace

ProjectedSquares projected_squares(std::span<const Matrix> x, std::span<const Matrix> w) {
  const Index m = x.front().rows();
  const Index hidden = w.front().rows();
  ProjectedSquares out;
  out.of_heads.assign(x.size(), 0.0);
  std::vector<MatrixD> queries(x.size());
  MatrixD weights;
  MatrixD weights_t;
  MatrixD part;
  MatrixD whole;
  for (Index q0 = 0; q0 < m; q0 += kQueries) {
    for (std::size_t g = 0; g < x.size(); ++g) {
      widen(x[g], q0, std::min(kQueries, m - q0), queries[g]);
    }
    for (Index h0 = 0; h0 < hidden; h0 += kHidden) {
      for (std::size_t g = 0; g < x.size(); ++g) {
        widen(w[g], h0, std::min(kHidden, hidden - h0), weights);
        transpose(weights, weights_t);
        MatrixD& product = g == 0 ? whole : part;
        inner_products(queries[g], weights_t, product);
        out.of_heads[g] += squared_norm(product);
        if (g > 0) {
          add(1.0, part.data(), part.rows() * part.cols(), whole.data());
        }
      }
      out.whole += squared_norm(whole);
    }
  }
  return out;
}

Index projected_squares_bytes(Index columns) {
  return 8 * ((kQueries + 2 * kHidden) * columns + 2 * kQueries * kHidden);
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
