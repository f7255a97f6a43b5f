// q-filters: the tokens whose keys lie farthest along the main direction of the queries.
// [1] Godey et al., "Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression", 2025,
//     arXiv:2503.02812, section 3.
// [2] Its public code, github.com/NathanGodey/qfilters, make_filters.py.
// The filter is the mean over the group's query heads of the first right singular vector of the
// head's scoring queries (rotated, not centred), with the sign that makes the sum of their
// projections positive. A token's score is its key's inner product with it ([2] negates both: the
// same order). Without scoring queries, or if all are 0, all scores are 0.
// In: queries [., d], K [m, d]. Out: B tokens of weight 1. float64. Time O(group (|queries| d^2 +
// d^3) + m d).
#include <algorithm>
#include <cmath>

#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/decompositions.hpp"

namespace kvbench::method_q_filters {
namespace {

// Of `queries` [., d]: of unit length, or 0.
std::vector<double> main_direction(MatrixView queries) {
  const Index d = queries.cols;
  MatrixD gram(d, d);
  add_gram<double>(queries, gram);
  Eigen::MatrixXd symmetric(d, d);
  std::vector<double> out(static_cast<std::size_t>(d), 0.0);
  double trace = 0.0;
  for (Index i = 0; i < d; ++i) {
    trace += gram.row(i)[i];
  }
  if (!(trace > 0.0)) {
    return out;
  }
  for (Index i = 0; i < d; ++i) {
    for (Index j = 0; j < d; ++j) {
      symmetric(i, j) = gram.row(i)[j] / trace;
    }
  }
  const SymmetricEigen eigen = symmetric_eigen(symmetric);
  double projections = 0.0;
  for (Index i = 0; i < d; ++i) {
    out[i] = eigen.vectors(i, d - 1);  // eigenvalues ascend
    for (Index j = 0; j < queries.rows; ++j) {
      projections += static_cast<double>(queries.row(j)[i]) * out[i];
    }
  }
  for (double& x : out) {
    x = projections < 0.0 ? -x : x;
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index begin = std::max(task.scoring.begin, head.q_start());
  const Range rows = {begin - head.q_start(), std::max(begin, task.scoring.end) - head.q_start()};
  std::vector<double> filter(static_cast<std::size_t>(head.d()), 0.0);
  for (const Matrix& q : head.q) {
    const std::vector<double> own = main_direction(q.view().slice(rows));
    for (std::size_t t = 0; t < filter.size(); ++t) {
      filter[t] += own[t] / static_cast<double>(head.q.size());
    }
  }
  std::vector<double> scores;
  for (const Index i : task.tokens) {
    double along = 0.0;
    for (std::size_t t = 0; t < filter.size(); ++t) {
      along = std::fma(static_cast<double>(head.k.row(i)[t]), filter[t], along);
    }
    scores.push_back(along);
  }
  return hold_top(task, params, scores);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "q-filters";
  info.family = Family::eviction;
  info.summary = "largest projection of the key onto the main direction of the queries";
  info.source = "Godey et al., 2025, arXiv:2503.02812, section 3";
  info.departures =
      "the filter comes from the head's own scoring queries, not once per model from a calibration "
      "set; the newest tokens are the protocol's";
  info.params = size_params();
  info.holds = Holds::tokens;
  info.facts = [](const Params&) { return JobFacts{.scoring = {Scoring()}}; };
  return {info, compress};
}

}  // namespace kvbench::method_q_filters
