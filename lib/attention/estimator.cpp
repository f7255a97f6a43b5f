#include "attention/estimator.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/query_block.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

std::vector<WeightedRows> parts_of(const WeightedRows& set) {
  std::vector<WeightedRows> out;
  for (std::size_t begin = 0; begin < set.rows.size(); begin += kSetTokens) {
    const std::size_t count = std::min<std::size_t>(kSetTokens, set.rows.size() - begin);
    WeightedRows& part = out.emplace_back(set);
    part.rows = set.rows.subspan(begin, count);
    part.weights = set.weights.empty() ? set.weights : set.weights.subspan(begin, count);
    part.positions = set.positions.empty() ? set.positions : set.positions.subspan(begin, count);
  }
  return out;
}

Range seen_rows(const WeightedRows& set, const std::vector<std::size_t>* entering, Index r) {
  const auto count = static_cast<Index>(entering == nullptr ? set.rows.size() : entering->size());
  if (!set.visible_from) {
    return {0, count};
  }
  const std::span<const Index> positions = set.positions.empty() ? set.rows : set.positions;
  const auto below = [&](Index bound) {
    const auto before = std::ranges::lower_bound(positions, bound) - positions.begin();
    return entering == nullptr
               ? static_cast<Index>(before)
               : std::ranges::lower_bound(*entering, static_cast<std::size_t>(before)) -
                     entering->begin();
  };
  const Index end = *set.visible_from + r;
  return {set.window > 0 ? below(end - set.window) : 0, below(end)};
}

SoftmaxSums::SoftmaxSums(const MatrixD& queries, Index dv, Precision precision,
                         std::span<const float> sink_logits)
    : queries_(&queries),
      precision_(precision),
      sums_{MatrixD(queries.rows(), dv),
            std::vector<double>(queries.rows(), sink_logits.empty() ? 0.0 : 1.0),
            std::vector<double>(queries.rows(), -kInfinity)} {
  std::ranges::copy(sink_logits, sums_.shift.begin());
}

void SoftmaxSums::add(const PartialSums& sums) {
  for (Index r = 0; r < queries_->rows(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (sums.shift[at] == -kInfinity) {
      continue;  // nothing entered
    }
    const CommonShift common(sums_.shift[at], sums.shift[at]);
    sums_.denominator[at] =
        sums_.denominator[at] * common.mine + sums.denominator[at] * common.theirs;
    double* to = sums_.numerator.row(r);
    const double* from = sums.numerator.row(r);
    for (Index c = 0; c < sums_.numerator.cols(); ++c) {
      to[c] = to[c] * common.mine + from[c] * common.theirs;
    }
    sums_.shift[at] = common.top;
  }
}

void SoftmaxSums::add_rows(MatrixView keys, MatrixView values, std::span<const Index> rows,
                           std::span<const float> weights, float common, SoftmaxPart part) {
  add({keys, values, rows, weights, common, part});
}

void SoftmaxSums::add(const WeightedRows& set) {
  for (const WeightedRows& part : parts_of(set)) {
    with_element(precision_, [&](auto element) { add_in<decltype(element)>(part); });
  }
}

template <class T>
void SoftmaxSums::add_in(const WeightedRows& set) {
  const bool weighted = !set.weights.empty() || set.common != 1.0F;
  std::vector<T> log_weights;
  std::vector<Index> kept_rows;  // without weights of 0, whose log would make a shift of -inf
  std::vector<std::size_t> entering;
  for (std::size_t i = 0; weighted && i < set.rows.size(); ++i) {
    const float w = set.weights.empty() ? set.common : set.weights[i];
    if (w != 0.0F) {
      entering.push_back(i);
      kept_rows.push_back(set.rows[i]);
      log_weights.push_back(static_cast<T>(std::log(static_cast<double>(w))));
    }
  }
  const std::span<const Index> rows = weighted ? std::span<const Index>(kept_rows) : set.rows;
  const auto count = static_cast<Index>(rows.size());
  if (count == 0) {
    return;
  }
  QueryBlock<T>& block = QueryBlock<T>::of_thread();
  const Index m = queries_->rows();
  const Index dv = sums_.numerator.cols();
  PartialSums sums{MatrixD(m, dv), std::vector<double>(m), std::vector<double>(m, -kInfinity)};
  const RowList values{set.values, rows, count};
  std::vector<Range> seen;
  for (Index r0 = 0; r0 < m; r0 += kQueryBlock) {
    const Index end = std::min(m, r0 + kQueryBlock);
    seen.clear();
    for (Index r = r0; r < end; ++r) {
      seen.push_back(seen_rows(set, weighted ? &entering : nullptr, r));
    }
    block.attend(*queries_, {r0, end}, {set.keys, rows, count},
                 weighted ? log_weights.data() : nullptr, seen,
                 set.part == SoftmaxPart::denominator ? nullptr : &values, sums.numerator.row(r0));
    for (Index r = r0; r < end; ++r) {
      sums.shift[r] = block.shift(r - r0);
      sums.denominator[r] = set.part == SoftmaxPart::numerator ? 0.0 : block.total(r - r0);
    }
  }
  add(sums);
}

WeightedRows causal_rows(const KvHead& head, std::span<const Index> rows, Index m) {
  return {head.k, head.v, rows, {}, 1.0F, SoftmaxPart::both, head.n() - m + 1, true, head.window};
}

MatrixD SoftmaxSums::output() const {
  MatrixD z(sums_.numerator.rows(), sums_.numerator.cols());
  for (Index r = 0; r < z.rows(); ++r) {
    const double den = sums_.denominator[r];
    const bool good = std::isfinite(den) && den > 0.0;
    for (Index c = 0; c < z.cols(); ++c) {
      z.row(r)[c] =
          good ? sums_.numerator.row(r)[c] / den : std::numeric_limits<double>::quiet_NaN();
    }
  }
  return z;
}

std::vector<double> SoftmaxSums::log_denominator() const {
  std::vector<double> out(sums_.denominator.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    out[r] = sums_.shift[r] + std::log(sums_.denominator[r]);
  }
  return out;
}

MatrixD scaled_queries(const KvHead& head, Index g, Index m) {
  MatrixD out(m, head.d());
  for (Index r = 0; r < m; ++r) {
    scaled_query(head, g, head.n() - m + r, out.row(r));
  }
  return out;
}

}  // namespace kvbench
