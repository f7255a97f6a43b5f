#include "attention/scores.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "attention/lanes.hpp"

namespace kvbench {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMap =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

constexpr Index kQueries = 64;  // rows at a time: kQueries x n logits
constexpr Index kKeys = 1024;   // keys widened at a time

FloatMap map(MatrixView m) {
  return {m.data, m.rows, m.cols};
}

}  // namespace

std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries) {
  const Index begin = std::max(queries.begin, head.q_start());
  std::vector<std::vector<double>> out(head.group(), std::vector<double>(head.n(), 0.0));
  RowMajor p;
  for (Index g = 0; g < head.group(); ++g) {
    const MatrixView q = head.q[g];
    double* sums = out[g].data();
    for (Index q0 = begin; q0 < queries.end; q0 += kQueries) {
      const Index rows = std::min(kQueries, queries.end - q0);
      const Index seen = q0 + rows;  // no query of the block sees further
      const RowMajor scaled =
          map(q.slice({q0 - head.q_start(), q0 - head.q_start() + rows})).cast<double>() *
          head.scale;
      p.resize(rows, seen);
      for (Index k0 = 0; k0 < seen; k0 += kKeys) {
        const Index count = std::min(kKeys, seen - k0);
        const RowMajor keys = map(head.k.view().slice({k0, k0 + count})).cast<double>();
        p.middleCols(k0, count).noalias() = scaled * keys.transpose();
      }
      for (Index r = 0; r < rows; ++r) {
        double* row = p.data() + r * seen;
        const Index past = q0 + r + 1;
        const double z = exponentials(row, past, largest(row, past));
        const double inverse = 1.0 / z;
#pragma omp simd
        for (Index i = 0; i < past; ++i) {
          sums[i] = std::fma(row[i], inverse, sums[i]);
        }
      }
    }
  }
  return out;
}

std::vector<double> reduce_group(const std::vector<std::vector<double>>& scores, Reduce reduce) {
  std::vector<double> out = scores.front();
  for (std::size_t g = 1; g < scores.size(); ++g) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = reduce == Reduce::max ? std::max(out[i], scores[g][i]) : out[i] + scores[g][i];
    }
  }
  if (reduce == Reduce::mean) {
    for (double& x : out) {
      x /= static_cast<double>(scores.size());
    }
  }
  return out;
}

}  // namespace kvbench
