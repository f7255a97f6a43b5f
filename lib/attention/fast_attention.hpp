// Dense attention by tensor cores: exact_attention, attention_sums and partial sums with the
// contracts of device_dense.hpp, but for accuracy. By the kernels of fast_attention_kernels.hpp.
//
// Error, against float64, of a row with d channels and logits l. Each term is relative to a weight
// exp(l), and adds to those of the others:
//   halves        3 2^-22 s |q||k| at most where operands are float32, about that over sqrt(d) as
//                 a rule; nothing in float16 or bfloat16 traces, whose elements are halves
//   products      d / 16 steps, each rounded once to float32 (2^-24 of the sum so far) and once or
//                 twice inside the tensor core (2^-23 of the step's own terms): about
//                 (2^-24 sqrt(d / 16) + 2^-23) |l| as a rule
//   exponent      u - top is rounded by 2^-24 of itself after the row's top is taken off, so by
//                 2^-24 of how far a weight is below the largest: what is far below weighs nothing
//   exp2, sums    2^-22, and 2^-24 times some ten: sums of 64 in float32, of slabs in float64
//   weights       2^-22 of each as halves, products with V as above
// At |l| = 30 that is 1e-5 of a weight at most. The row's sum carries the mean of these errors and
// the output a mean of their signs, so outputs agree to 1e-5 of their norm (float16, bfloat16), and
// to 1e-4 where logits are of some hundred or elements are float32. Played on the CPU with heads of
// tests/data/small.h5 (float16), the mean rel_error of 23 methods was that of exact mode to 1e-7;
// method exact, whose truth and estimate are summed in different orders, had 1e-7, not 1e-16.
//
// Cost of a logit. Flops of the tensor cores: 2 d p for the sum in each of two passes (p = 1, 2 or
// 3 products, core/tile_product.hpp) and 2 dv (p + 1) for its value; beside them some 40 operations
// of float32 and two exp2. At d = dv = 128 in float16 that is 1024 flops, 1.0 ps of an H200's 990
// TFLOP/s, 1.3 ps of float32 and 0.5 ps of exp2; device_dense.hpp's 300 operations of float64 take
// 18 ps. Bytes of device memory: keys twice and values once per 64 rows or more, 12 per logit, most
// of them from the second-level cache. Operands come out of the first-level cache: a step of the
// first pass takes 16 clocks of the tensor cores for its 65536 flops and 24 to 48 of the cache for
// its 3072 bytes (a request reads half of each sector of two lines), so a third of their peak can
// be reached, and beside the rest of the work a quarter: some 4 ps.
//
// Memory beside the head, in arrays of at most scratch_bytes() each: halves of the queries and of a
// panel of keys and of values; 12 bytes per row and slab; for a group of 16 rows a float32 per key;
// dv float32 per row and slab. At least 128 rows and 512 keys are taken at a time. Results have the
// same bits however small scratch is.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attention/device_dense.hpp"
#include "attention/fast_softmax.hpp"

namespace kvbench {

/// How the halves of a head are scaled.
struct FastScales {
  HalfScale k, v;
  std::vector<HalfScale> q;  ///< group

  /// Reads the head's elements once, on the machine. Waits.
  template <class M>
  FastScales(M& machine, const HeadTensors<M>& head)
      : k(fast::half_scale_of(machine, head.k)), v(fast::half_scale_of(machine, head.v)) {
    for (const Array<float, M>& queries : head.q) {
      q.push_back(fast::half_scale_of(machine, queries));
    }
  }
};

/// exact_attention_on() by tensor cores.
template <class M>
ExactAttention exact_attention_fast(M& machine, const HeadTensors<M>& head,
                                    const FastScales& scales, Index g,
                                    std::span<const Index> positions) {
  const KvHead& host = *head.head;
  const auto m = static_cast<Index>(positions.size());
  const HalfScale of_queries = scales.q[static_cast<std::size_t>(g)];
  ExactAttention out = dense::blank_attention(host, m);
  const dense::QueriesAt at(host, positions);

  const Index most = fast::Panels<M>::tokens(machine, std::max(host.d(), host.dv()));
  fast::Panels<M> keys(machine, dense::TokenRows<M>(head.k, host.d(), nullptr), at.most, most,
                       scales.k);
  fast::Panels<M> values(machine, dense::TokenRows<M>(head.v, host.dv(), nullptr), at.most, most,
                         scales.v);
  fast::SoftmaxRows<M> block(machine, m, at.most, of_queries, keys, &values, host.d(), host.dv(),
                             /*columns=*/true);
  Array<double, M> mass(machine, host.n());
  Array<std::uint8_t, M> noticed(machine, host.n());
  mass.zero();
  noticed.zero();
  for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
    const Index rows = std::min(block.capacity(), m - r0);
    block.set(head.q[static_cast<std::size_t>(g)].data(),
              dense::part(std::span<const Index>(at.rows), r0, rows),
              dense::part(std::span<const Index>(at.seen), r0, rows),
              fast::factor_of(host.scale, of_queries, scales.k));
    block.softmax(nullptr);
    block.weigh(nullptr, mass.data(), {noticed.data(), kAmnesiaThreshold});
    block.numerator(out.output.row(r0));
    const std::vector<fast::RowTotals> totals = block.totals();
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      dense::finish_row(out, totals[r].shift, totals[r].total, totals[r].square);
    }
  }
  mass.get(out.mass);
  noticed.get(out.noticed);
  std::for_each(out.mass.begin(), out.mass.end(), [&](double& x) { x /= static_cast<double>(m); });
  return out;
}

/// attention_sums_on() by tensor cores.
template <class M>
std::vector<std::vector<double>> attention_sums_fast(M& machine, const HeadTensors<M>& head,
                                                     const FastScales& scales, Range queries) {
  const KvHead& host = *head.head;
  const Index begin = std::max(queries.begin, host.q_start());
  const Index m = Range{begin, queries.end}.size();
  std::vector<std::vector<double>> out(
      static_cast<std::size_t>(host.group()),
      std::vector<double>(static_cast<std::size_t>(host.n()), 0.0));
  if (m == 0) {
    return out;
  }
  fast::Panels<M> keys(machine, dense::TokenRows<M>(head.k, host.d(), nullptr), queries.end,
                       fast::Panels<M>::tokens(machine, host.d()), scales.k);
  std::vector<Index> seen(static_cast<std::size_t>(m));
  std::iota(seen.begin(), seen.end(), begin + 1);
  Array<double, M> sums(machine, host.n());
  for (std::size_t g = 0; g < out.size(); ++g) {
    fast::SoftmaxRows<M> block(machine, m, queries.end, scales.q[g], keys, nullptr, host.d(), 0,
                               /*columns=*/true);
    sums.zero();
    for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
      const Index rows = std::min(block.capacity(), m - r0);
      block.set(head.q[g].data() + (begin - host.q_start() + r0) * host.d(), {},
                dense::part(std::span<const Index>(seen), r0, rows),
                fast::factor_of(host.scale, scales.q[g], scales.k));
      block.softmax(nullptr);
      block.weigh(nullptr, sums.data(), {nullptr, 0.0});
    }
    sums.get(out[g]);
  }
  return out;
}

/// partial_sums_on() by tensor cores.
template <class M>
PartialSums partial_sums_fast(M& machine, const HeadTensors<M>& head, const FastScales& scales,
                              const MatrixD& queries, const SumPiece& piece) {
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
  const Index most = fast::Panels<M>::tokens(machine, weigh ? std::max(d, dv) : d);
  const auto of = [&](MatrixView matrix, const Matrix& own, const Array<float, M>& resident,
                      HalfScale scale) {
    if (matrix.data == own.data()) {
      return fast::Panels<M>(machine, dense::TokenRows<M>(resident, matrix.cols, rows.data()),
                             count, most, scale);
    }
    std::vector<float> used;
    for (const Index row : entries.rows) {
      const auto span = matrix.row_span(row);
      used.insert(used.end(), span.begin(), span.end());
    }
    return fast::Panels<M>(machine, dense::TokenRows<M>(machine, matrix, entries.rows, most), count,
                           most, fast::half_scale_of(std::span<const float>(used)));
  };
  fast::Panels<M> keys = of(piece.keys, host.k, head.k, scales.k);
  std::optional<fast::Panels<M>> values;
  if (weigh) {
    values.emplace(of(piece.values, host.v, head.v, scales.v));
  }
  const HalfScale of_queries =
      fast::half_scale_of(std::span<const double>(queries.data(), static_cast<std::size_t>(m * d)));
  const double factor = fast::factor_of(1.0, of_queries, keys.scale());
  std::vector<float> in_sums;  // log weights in units of a sum
  for (const double w : entries.log_weights) {
    in_sums.push_back(static_cast<float>(w / factor));
  }
  const Array<float, M> log_weights(machine, in_sums);
  const float* own_weights = in_sums.empty() ? nullptr : log_weights.data();

  fast::SoftmaxRows<M> block(machine, m, count, of_queries, keys, weigh ? &*values : nullptr, d, dv,
                             /*columns=*/false);
  Array<double, M> wide(machine, block.capacity() * d);
  for (Index r0 = 0; r0 < m; r0 += block.capacity()) {
    const Index block_rows = std::min(block.capacity(), m - r0);
    wide.put({queries.row(r0), static_cast<std::size_t>(block_rows * d)});
    block.set(wide.data(), {}, dense::part(std::span<const Index>(seen), r0, block_rows), factor);
    block.softmax(own_weights);
    if (weigh) {
      block.weigh(own_weights, nullptr, {nullptr, 0.0});
      block.numerator(out.numerator.row(r0));
    }
    const std::vector<fast::RowTotals> totals = block.totals();
    for (Index r = 0; r < block_rows; ++r) {
      const auto to = static_cast<std::size_t>(r0 + r);
      out.shift[to] = totals[static_cast<std::size_t>(r)].shift;
      if (piece.part != Part::numerator) {
        out.denominator[to] = totals[static_cast<std::size_t>(r)].total;
      }
    }
  }
  return out;
}

}  // namespace kvbench
