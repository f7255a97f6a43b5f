#include <cmath>
#include <numeric>

#include "gpu/attend.cuh"
#include "gpu/attention.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 256;

/// wide[i] = row rows[i] of q, in float64, times the scale. [rows, d]
__global__ void scaled_queries(const float* q, const Index* rows, Index count, Index d,
                               double scale, double* wide) {
  const Index at = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count * d) {
    wide[at] = static_cast<double>(q[rows[at / d] * d + at % d]) * scale;
  }
}

/// sums [n] += probabilities [rows, n], row by row; what exceeds the threshold is noticed, unless
/// that is null.
__global__ void add_columns(const double* probabilities, Index rows, Index n, double* sums,
                            std::uint8_t* noticed) {
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) {
    for (Index r = 0; r < rows; ++r) {
      const double p = probabilities[r * n + i];
      sums[i] += p;
      if (noticed != nullptr && p > kAmnesiaThreshold) {
        noticed[i] = 1;
      }
    }
  }
}

// Queries at positions of the head attend to all that they see, as many at a time as scratch holds.
// use(first, how many, what they attended to); weights are probabilities [queries, n].
template <class Use>
void attend_causally(const Head& head, Index g, std::span<const Index> positions, bool values,
                     const Use& use) {
  const KvHead& host = *head.host;
  const Device& device = head.device;
  const Index n = host.n();
  std::vector<Token> all(n);
  for (Index i = 0; i < n; ++i) {
    all[i] = {i, 0.0};
  }
  const Array<Token> tokens(device, std::span<const Token>(all));
  const auto m = static_cast<Index>(positions.size());
  const Index together = std::max<Index>(1, QueryPlan(head).room(n, values));
  for (Index begin = 0; begin < m; begin += together) {
    const Index count = std::min(together, m - begin);
    std::vector<Index> rows;
    std::vector<Index> seen;
    for (Index r = begin; r < begin + count; ++r) {
      const Index position = positions[r];
      rows.push_back(position - host.q_start());
      seen.push_back(position + 1);
    }
    QueryPlan plan(head);
    plan.add(0, n, seen, values);
    const Array<Index> q_rows(device, std::span<const Index>(rows));
    const Array<double> wide(device, count * host.d());
    device.launch(scaled_queries, ceil_div(wide.size(), kThreads), kThreads, head.q[g].data(),
                  q_rows.data(), count, host.d(), host.scale, wide.data());
    use(begin, count,
        attend(device, plan, tokens, {head.k.data(), nullptr, host.d()},
               {head.v.data(), nullptr, host.dv()}, wide, /*normalise=*/true));
  }
}

std::span<double> rows_of(MatrixD& m, Index begin, Index count) {
  return {m.row(begin), static_cast<std::size_t>(count * m.cols())};
}

}  // namespace

ExactAttention exact_attention(const Head& head, Index g, std::span<const Index> positions) {
  const KvHead& host = *head.host;
  const auto m = static_cast<Index>(positions.size());
  ExactAttention out;
  out.output = MatrixD(m, host.dv());
  out.mass.resize(host.n());
  out.noticed.resize(out.mass.size());
  Array<double> mass(head.device, host.n());
  Array<std::uint8_t> noticed(head.device, host.n());
  mass.zero();
  noticed.zero();
  attend_causally(
      head, g, positions, /*values=*/true, [&](Index begin, Index count, const Attended& a) {
        head.device.launch(add_columns, ceil_div(host.n(), kThreads), kThreads, a.weights.data(),
                           count, host.n(), mass.data(), noticed.data());
        a.numerators.get(rows_of(out.output, begin, count));
        std::vector<Figures> figures(count);
        a.figures.get(figures);
        for (const Figures& f : figures) {
          out.log_z.push_back(f.shift + std::log(f.total));
          out.p_norm.push_back(std::sqrt(f.square) / f.total);
        }
      });
  mass.get(out.mass);
  noticed.get(out.noticed);
  for (double& x : out.mass) {
    x /= static_cast<double>(m);
  }
  return out;
}

MatrixD exact_probabilities(const Head& head, Index g, std::span<const Index> positions) {
  MatrixD out(static_cast<Index>(positions.size()), head.host->n());
  attend_causally(head, g, positions, /*values=*/false,
                  [&](Index begin, Index count, const Attended& a) {
                    a.weights.get(rows_of(out, begin, count));
                  });
  return out;
}

std::vector<std::vector<double>> attention_sums(const Head& head, Range queries) {
  const KvHead& host = *head.host;
  const Range held{std::max(queries.begin, host.q_start()), queries.end};
  std::vector<Index> positions(held.size());
  std::iota(positions.begin(), positions.end(), held.begin);
  std::vector<std::vector<double>> out(host.group(), std::vector<double>(host.n()));
  Array<double> sums(head.device, host.n());
  for (Index g = 0; g < host.group(); ++g) {
    sums.zero();
    attend_causally(head, g, positions, /*values=*/false,
                    [&](Index, Index count, const Attended& a) {
                      head.device.launch(add_columns, ceil_div(host.n(), kThreads), kThreads,
                                         a.weights.data(), count, host.n(), sums.data(), nullptr);
                    });
    sums.get(out[g]);
  }
  return out;
}

}  // namespace kvbench::gpu
