#include "attention/estimator.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/lanes.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Index kBlock = 512;  // keys per block: m x kBlock logits stay in cache

Eigen::Map<const RowMajor> map(const MatrixD& m) {
  return {m.data(), m.rows(), m.cols()};
}

}  // namespace

SoftmaxSums::SoftmaxSums(const MatrixD& queries, Index dv)
    : queries_(&queries),
      numerator_(queries.rows(), dv),
      denominator_(queries.rows(), 0.0),
      shift_(queries.rows(), -kInfinity) {}

void SoftmaxSums::add(const PartialSums& sums) {
  for (Index r = 0; r < queries_->rows(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (sums.shift[at] == -kInfinity) {
      continue;  // nothing entered
    }
    const double top = std::max(shift_[at], sums.shift[at]);
    const double mine = exp_shared(shift_[at] - top);
    const double theirs = exp_shared(sums.shift[at] - top);
    denominator_[at] = denominator_[at] * mine + sums.denominator[at] * theirs;
    double* to = numerator_.row(r);
    const double* from = sums.numerator.row(r);
    for (Index c = 0; c < numerator_.cols(); ++c) {
      to[c] = to[c] * mine + from[c] * theirs;
    }
    shift_[at] = top;
  }
}

void SoftmaxSums::add_block(MatrixView keys, MatrixView values, std::span<const Index> rows,
                            const double* log_weights, Part part, std::span<const Index> visible) {
  const auto count = static_cast<Index>(rows.size());
  if (count == 0) {
    return;
  }
  // A job adds hundreds of blocks: allocating these anew each time costs as much as the arithmetic.
  thread_local MatrixD wide_keys;
  thread_local MatrixD wide_values;
  thread_local MatrixD logits;
  gather_rows(keys, rows, wide_keys);
  const Index m = queries_->rows();
  logits.resize(m, count);
  Eigen::Map<RowMajor> p(logits.data(), m, count);
  p.noalias() = map(*queries_) * map(wide_keys).transpose();
  Eigen::Map<RowMajor> numerator(numerator_.data(), m, numerator_.cols());
  for (Index r = 0; r < m; ++r) {
    const auto at = static_cast<std::size_t>(r);
    double* row = p.row(r).data();
    const Index seen = visible.empty() ? count : visible[at];
    if (log_weights != nullptr) {
      for (Index i = 0; i < seen; ++i) {
        row[i] += log_weights[i];
      }
    }
    const double top = std::max(shift_[at], largest(row, seen));
    if (top > shift_[at]) {
      const double shrink = exp_shared(shift_[at] - top);
      denominator_[at] *= shrink;
      numerator.row(r) *= shrink;
      shift_[at] = top;
    }
    const double sum = exponentials(row, seen, top);
    std::fill(row + seen, row + count, 0.0);
    if (part != Part::numerator) {
      denominator_[at] += sum;
    }
  }
  if (part != Part::denominator) {
    gather_rows(values, rows, wide_values);
    numerator.noalias() += p * map(wide_values);
  }
}

void SoftmaxSums::add_rows(MatrixView keys, MatrixView values, std::span<const Index> rows,
                           std::span<const float> weights, float common, Part part) {
  add({keys, values, rows, weights, common, part, {}, false});
}

void SoftmaxSums::add(const WeightedRows& set) {
  const bool weighted = !set.weights.empty() || set.common != 1.0F;
  std::vector<double> log_weights;
  std::vector<Index> block;
  std::vector<Index> visible(set.visible_from ? static_cast<std::size_t>(queries_->rows()) : 0);
  for (std::size_t begin = 0; begin < set.rows.size(); begin += kBlock) {
    block.clear();
    log_weights.clear();
    for (std::size_t i = begin; i < std::min(set.rows.size(), begin + kBlock); ++i) {
      const float w = set.weights.empty() ? set.common : set.weights[i];
      if (w != 0.0F) {  // log 0 would make a shift of -inf
        block.push_back(set.rows[i]);
        log_weights.push_back(std::log(static_cast<double>(w)));
      }
    }
    for (std::size_t r = 0; r < visible.size(); ++r) {
      const Index end = *set.visible_from + static_cast<Index>(r);
      visible[r] = std::lower_bound(block.begin(), block.end(), end) - block.begin();
    }
    add_block(set.keys, set.values, block, weighted ? log_weights.data() : nullptr, set.part,
              visible);
  }
}

WeightedRows causal_rows(const KvHead& head, std::span<const Index> rows, Index m) {
  return {head.k, head.v, rows, {}, 1.0F, Part::both, head.n() - m + 1, true};
}

MatrixD SoftmaxSums::output(Index& degenerate) const {
  MatrixD z(numerator_.rows(), numerator_.cols());
  degenerate = 0;
  for (Index r = 0; r < z.rows(); ++r) {
    const double den = denominator_[r];
    const bool good = std::isfinite(den) && den > 0.0;
    degenerate += good ? 0 : 1;
    for (Index c = 0; c < z.cols(); ++c) {
      z.row(r)[c] = good ? numerator_.row(r)[c] / den : std::numeric_limits<double>::quiet_NaN();
    }
  }
  return z;
}

std::vector<double> SoftmaxSums::log_denominator() const {
  std::vector<double> out(denominator_.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    out[r] = shift_[r] + std::log(denominator_[r]);
  }
  return out;
}

MatrixD scaled_queries(const KvHead& head, Index g, Index m) {
  const MatrixView q = head.q[g];
  MatrixD out(m, q.cols);
  for (Index r = 0; r < m; ++r) {
    const float* from = q.row(q.rows - m + r);
    for (Index t = 0; t < q.cols; ++t) {
      out.row(r)[t] = static_cast<double>(from[t]) * head.scale;
    }
  }
  return out;
}

}  // namespace kvbench
