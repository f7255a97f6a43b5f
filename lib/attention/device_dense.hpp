// Dense attention on a machine (core/machine.hpp): exact attention, attention sums and the
// estimator's partial sums, by the kernels of dense_kernels.hpp.
//
// Agreement with the functions of the CPU: both sum in float64, each in an order of its own, so a
// sum of n terms agrees to about n 2^-53 of the sum of their absolute values at the worst and
// sqrt(n) 2^-53 as a rule. Logits are off by some d 2^-53 of |q| |k|, and with them, relatively,
// every weight. A token whose probability is within that of the threshold may be noticed by one and
// not by the other. The results have the same bits however small a machine's scratch is and in
// whatever order its blocks run.
//
// Memory beside the resident head: rows of queries are taken as many at a time as keep every array
// within scratch_bytes(), but at least one row, which takes n float64; keys and values that must be
// copied are taken a panel at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "attention/dense_block.hpp"
#include "attention/device_tensors.hpp"
#include "attention/estimator.hpp"
#include "attention/exact.hpp"
#include "core/machine.hpp"
#include "core/types.hpp"

namespace kvbench {
namespace dense {

template <class T>
std::span<const T> part(std::span<const T> whole, Index begin, Index count) {
  return whole.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

/// Queries at positions of a head.
struct QueriesAt {
  std::vector<Index> rows;  ///< where each lies among the head's
  std::vector<Index> seen;  ///< how many tokens each sees
  Index most = 0;           ///< the largest of them

  QueriesAt(const KvHead& head, std::span<const Index> positions) {
    for (const Index position : positions) {
      rows.push_back(position - head.q_start());
      seen.push_back(position + 1);
      most = std::max(most, position + 1);
    }
  }
};

/// Exact attention of m queries before there is any.
inline ExactAttention blank_attention(const KvHead& head, Index m) {
  ExactAttention out;
  out.output = MatrixD(m, head.dv());
  out.log_z.reserve(static_cast<std::size_t>(m));
  out.p_norm.reserve(static_cast<std::size_t>(m));
  out.mass.resize(static_cast<std::size_t>(head.n()));
  out.noticed.resize(static_cast<std::size_t>(head.n()));
  return out;
}

/// The next row, whose output is a numerator so far: `shift` is the logit at which a weight counts
/// 1, `total` the sum of weights, `square` that of their squares.
inline void finish_row(ExactAttention& to, double shift, double total, double square) {
  double* row = to.output.row(static_cast<Index>(to.log_z.size()));
  std::for_each(row, row + to.output.cols(), [&](double& x) { x /= total; });
  to.log_z.push_back(shift + std::log(total));
  to.p_norm.push_back(std::sqrt(square) / total);
}

}  // namespace dense

/// exact_attention(head, g, positions, .), on the machine that holds the head.
template <class M>
ExactAttention exact_attention_on(M& machine, const HeadTensors<M>& head, Index g,
                                  std::span<const Index> positions) {
  const KvHead& host = *head.head;
  const auto m = static_cast<Index>(positions.size());
  ExactAttention out = dense::blank_attention(host, m);
  const dense::QueriesAt at(host, positions);

  dense::TokenRows<M> keys(head.k, host.d(), nullptr);
  dense::TokenRows<M> values(head.v, host.dv(), nullptr);
  dense::PackedKeys<M> packed(machine, keys, at.most);
  dense::QueryBlock<M> block(machine, m, at.most, host.d(), host.dv());
  Array<double, M> mass(machine, host.n());
  Array<std::uint8_t, M> noticed(machine, host.n());
  mass.zero();
  noticed.zero();
  for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
    const Index rows = std::min(block.capacity(), m - r0);
    block.set(head.q[static_cast<std::size_t>(g)].data(),
              dense::part(std::span<const Index>(at.rows), r0, rows),
              dense::part(std::span<const Index>(at.seen), r0, rows), host.scale);
    block.logits(packed, nullptr);
    block.softmax();
    block.add_columns(mass.data(), {noticed.data(), kAmnesiaThreshold});
    block.weigh(values);
    block.numerator(out.output.row(r0));
    const dense::RowFigures figures = block.figures();
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      dense::finish_row(out, figures.shift[r], figures.total[r], figures.square[r]);
    }
  }
  mass.get(out.mass);
  noticed.get(out.noticed);
  std::for_each(out.mass.begin(), out.mass.end(), [&](double& x) { x /= static_cast<double>(m); });
  return out;
}

/// exact_probabilities(head, g, positions), on the machine that holds the head.
template <class M>
MatrixD exact_probabilities_on(M& machine, const HeadTensors<M>& head, Index g,
                               std::span<const Index> positions) {
  const KvHead& host = *head.head;
  const auto m = static_cast<Index>(positions.size());
  MatrixD out(m, host.n());
  const dense::QueriesAt at(host, positions);
  dense::TokenRows<M> keys(head.k, host.d(), nullptr);
  dense::PackedKeys<M> packed(machine, keys, at.most);
  dense::QueryBlock<M> block(machine, m, at.most, host.d(), /*dv=*/0);
  const Array<double, M> rows_there(machine, block.capacity() * host.n());
  for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
    const Index rows = std::min(block.capacity(), m - r0);
    block.set(head.q[static_cast<std::size_t>(g)].data(),
              dense::part(std::span<const Index>(at.rows), r0, rows),
              dense::part(std::span<const Index>(at.seen), r0, rows), host.scale);
    block.logits(packed, nullptr);
    block.softmax();
    block.probabilities(rows_there.data(), host.n());
    rows_there.get({out.row(r0), static_cast<std::size_t>(rows * host.n())});
  }
  return out;
}

/// attention_sums(head, queries), on the machine that holds the head.
template <class M>
std::vector<std::vector<double>> attention_sums_on(M& machine, const HeadTensors<M>& head,
                                                   Range queries) {
  const KvHead& host = *head.head;
  const Index begin = std::max(queries.begin, host.q_start());
  const Index m = Range{begin, queries.end}.size();
  std::vector<std::vector<double>> out(
      static_cast<std::size_t>(host.group()),
      std::vector<double>(static_cast<std::size_t>(host.n()), 0.0));
  if (m == 0) {
    return out;
  }
  dense::TokenRows<M> keys(head.k, host.d(), nullptr);
  dense::PackedKeys<M> packed(machine, keys, queries.end);
  dense::QueryBlock<M> block(machine, m, queries.end, host.d(), /*dv=*/0);
  std::vector<Index> seen(static_cast<std::size_t>(m));
  std::iota(seen.begin(), seen.end(), begin + 1);
  Array<double, M> sums(machine, host.n());
  for (std::size_t g = 0; g < out.size(); ++g) {
    sums.zero();
    for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
      const Index rows = std::min(block.capacity(), m - r0);
      block.set(head.q[g].data() + (begin - host.q_start() + r0) * host.d(), {},
                dense::part(std::span<const Index>(seen), r0, rows), host.scale);
      block.logits(packed, nullptr);
      block.softmax();
      block.add_columns(sums.data(), {nullptr, 0.0});
    }
    sums.get(out[g]);
  }
  return out;
}

namespace dense {

/// The entries of a piece that contribute, in the order in which a query sees a prefix of them.
struct Entries {
  std::vector<Index> rows;
  std::vector<double> log_weights;  // empty: every weight is 1
};

inline Entries entries_of(const SumPiece& piece) {
  Entries out;
  const bool weighted = !piece.weights.empty() || piece.common != 1.0F;
  std::vector<std::size_t> order(piece.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (piece.visible_from.has_value() && !std::is_sorted(piece.rows.begin(), piece.rows.end())) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return piece.rows[a] < piece.rows[b]; });
  }
  for (const std::size_t i : order) {
    const float w = piece.weights.empty() ? piece.common : piece.weights[i];
    if (w != 0.0F) {  // log 0 would make a shift of -inf
      out.rows.push_back(piece.rows[i]);
      if (weighted) {
        out.log_weights.push_back(std::log(static_cast<double>(w)));
      }
    }
  }
  return out;
}

/// How many of `rows` each of m queries sees.
inline std::vector<Index> seen_by(std::span<const Index> rows, Index m,
                                  std::optional<Index> visible_from) {
  std::vector<Index> seen(static_cast<std::size_t>(m), static_cast<Index>(rows.size()));
  if (visible_from.has_value()) {
    for (Index r = 0; r < m; ++r) {
      const auto end = std::lower_bound(rows.begin(), rows.end(), *visible_from + r);
      seen[static_cast<std::size_t>(r)] = end - rows.begin();
    }
  }
  return seen;
}

}  // namespace dense

/// What `piece` adds to the sums of `queries` [m, d], which are in float64, times the scale. Keys
/// and values that are the head's own are read where they lie; others are copied to the machine.
template <class M>
PartialSums partial_sums_on(M& machine, const HeadTensors<M>& head, const MatrixD& queries,
                            const SumPiece& piece) {
  const KvHead& host = *head.head;
  const Index m = queries.rows();
  const Index d = queries.cols();
  const Index dv = host.dv();
  const auto rows_of_all = static_cast<std::size_t>(m);
  PartialSums out{MatrixD(m, dv), std::vector<double>(rows_of_all, 0.0),
                  std::vector<double>(rows_of_all, -std::numeric_limits<double>::infinity())};
  const dense::Entries entries = dense::entries_of(piece);
  const std::vector<Index> seen = dense::seen_by(entries.rows, m, piece.visible_from);
  const Index count = m > 0 ? *std::max_element(seen.begin(), seen.end()) : 0;
  if (count == 0) {
    return out;
  }

  const bool weigh = piece.part != Part::denominator;
  const Array<Index, M> rows(machine, entries.rows);
  const Array<double, M> log_weights(machine, entries.log_weights);
  const auto of = [&](MatrixView matrix, const Matrix& own, const Array<float, M>& resident,
                      Index panel) {
    return matrix.data == own.data() ? dense::TokenRows<M>(resident, matrix.cols, rows.data())
                                     : dense::TokenRows<M>(machine, matrix, entries.rows, panel);
  };
  auto keys = of(piece.keys, host.k, head.k, dense::PackedKeys<M>::panel_tokens(machine, d));
  auto values = weigh ? of(piece.values, host.v, head.v,
                           std::max(dense::WeighValues::kSlab,
                                    dense::fitting(machine, dv * static_cast<Index>(sizeof(float)),
                                                   dense::WeighValues::kSlab)))
                      : dense::TokenRows<M>(head.v, host.dv(), nullptr);
  dense::PackedKeys<M> packed(machine, keys, count);
  dense::QueryBlock<M> block(machine, m, count, d, weigh ? dv : 0);
  Array<double, M> wide(machine, block.capacity() * d);
  for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
    const Index block_rows = std::min(block.capacity(), m - r0);
    wide.put({queries.row(r0), static_cast<std::size_t>(block_rows * d)});
    block.set(wide.data(), {}, dense::part(std::span<const Index>(seen), r0, block_rows), 1.0);
    block.logits(packed, entries.log_weights.empty() ? nullptr : log_weights.data());
    block.softmax();
    if (weigh) {
      block.weigh(values);
      block.numerator(out.numerator.row(r0));
    }
    const dense::RowFigures figures = block.figures();
    std::copy(figures.shift.begin(), figures.shift.end(), out.shift.begin() + r0);
    if (piece.part != Part::numerator) {
      std::copy(figures.total.begin(), figures.total.end(), out.denominator.begin() + r0);
    }
  }
  return out;
}

}  // namespace kvbench
