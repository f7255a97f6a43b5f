#include "attention/truth.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/query_block.hpp"

namespace kvbench {
namespace {

template <class T>
ExactAttention attention_in(const KvHead& head, Index g, std::span<const Index> positions,
                            int threads) {
  const Index n = head.n();
  const auto m = static_cast<Index>(positions.size());
  const Index blocks = (m + kTruthBlock - 1) / kTruthBlock;
  ExactAttention out;
  out.output = MatrixD(m, head.dv());
  out.log_z.resize(m);
  out.p_norm.resize(m);
  out.mass.assign(n, 0.0);
  out.noticed.assign(n, 0);
  // Column sums per block of queries, added in block order: the same bits for any thread count.
  MatrixD block_mass(blocks, n);
  std::vector<std::vector<std::uint8_t>> block_noticed(blocks, std::vector<std::uint8_t>(n, 0));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    QueryBlock<T> block;
    const Index r0 = b * kTruthBlock;
    const Index rows = std::min(kTruthBlock, m - r0);
    block.attend(head, g, positions.subspan(r0, static_cast<std::size_t>(rows)),
                 out.output.row(r0));
    block.add_columns(block_mass.row(b), block_noticed[b].data(), kAmnesiaThreshold);
    for (Index r = 0; r < rows; ++r) {
      const double z = block.total(r);
      const auto at = static_cast<std::size_t>(r0 + r);
      out.log_z[at] = block.shift(r) + std::log(z);
      out.p_norm[at] = std::sqrt(block.square(r)) / z;
      for (Index c = 0; c < head.dv(); ++c) {
        out.output.row(r0 + r)[c] /= z;
      }
    }
  }
  for (Index b = 0; b < blocks; ++b) {
    for (Index i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out.mass[at] += block_mass.row(b)[i];
      out.noticed[at] |= block_noticed[b][at];
    }
  }
  for (double& x : out.mass) {
    x /= static_cast<double>(m);
  }
  return out;
}

template <class T>
MatrixD probabilities_in(const KvHead& head, Index g, std::span<const Index> positions) {
  const auto m = static_cast<Index>(positions.size());
  MatrixD out(m, head.n());
  QueryBlock<T> block;
  for (Index r0 = 0; r0 < m; r0 += kTruthBlock) {
    const Index rows = std::min(kTruthBlock, m - r0);
    block.attend(head, g, positions.subspan(r0, static_cast<std::size_t>(rows)), nullptr);
    for (Index r = 0; r < rows; ++r) {
      const Range seen = head.visible(positions[r0 + r]);
      for (Index i = seen.begin; i < seen.end; ++i) {
        out.row(r0 + r)[i] = static_cast<double>(block.weight(i, r)) / block.total(r);
      }
    }
  }
  return out;
}

}  // namespace

ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                               int threads) {
  return with_element(head.precision, [&](auto element) {
    return attention_in<decltype(element)>(head, g, positions, threads);
  });
}

MatrixD exact_probabilities(const KvHead& head, Index g, std::span<const Index> positions) {
  return with_element(head.precision, [&](auto element) {
    return probabilities_in<decltype(element)>(head, g, positions);
  });
}

ExactAttention exact_attention(const KvHead& head, Index g, Index m, int threads) {
  std::vector<Index> last(m);
  std::iota(last.begin(), last.end(), head.n() - m);
  return exact_attention(head, g, last, threads);
}

double sink_share(const KvHead& head, Index g, double log_z) {
  return std::exp(sink_logit(head, g) - log_z);
}

}  // namespace kvbench
