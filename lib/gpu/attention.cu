#include <cmath>
#include <numeric>

#include "gpu/attend.cuh"
#include "gpu/attention.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 256;

/// scaled [rows, d]: row rows[i] of q times the scale.
template <class T>
__global__ void scaled_queries(const float* q, const Index* rows, Index count, Index d,
                               double scale, T* scaled) {
  const Index at = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count * d) {
    scaled[at] = static_cast<T>(static_cast<double>(q[rows[at / d] * d + at % d]) * scale);
  }
}

/// sums [n] += probabilities of weights [rows, n], row by row. Sets noticed[i] above the threshold;
/// `noticed` may be null.
template <class T>
__global__ void add_columns(const T* weights, const Figures* figures, Index rows, Index n,
                            double* sums, std::uint8_t* noticed) {
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) {
    for (Index r = 0; r < rows; ++r) {
      const auto w = static_cast<double>(weights[r * n + i]);
      sums[i] += w / figures[r].total;
      if (noticed != nullptr && w > kAmnesiaThreshold * figures[r].total) {
        noticed[i] = 1;
      }
    }
  }
}

// Queries at `positions` attend to all tokens that they see, as many at a time as fit scratch.
// Calls use(first, count, attended) with weights [queries, n].
template <class T, class Use>
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
  const Index together = std::max<Index>(1, QueryPlan(head).free_queries(n, values));
  for (Index begin = 0; begin < m; begin += together) {
    const Index count = std::min(together, m - begin);
    std::vector<Index> rows;
    std::vector<Range> seen;
    for (Index r = begin; r < begin + count; ++r) {
      const Index position = positions[r];
      rows.push_back(position - host.q_start());
      seen.push_back(host.visible(position));
    }
    QueryPlan plan(head);
    plan.add(0, n, seen, values, sink_logit(host, g));
    const Array<Index> q_rows(device, std::span<const Index>(rows));
    const Array<T> scaled(device, count * host.d());
    device.launch(scaled_queries<T>, ceil_div(scaled.size(), kThreads), kThreads, head.q[g].data(),
                  q_rows.data(), count, host.d(), host.scale, scaled.data());
    use(begin, count,
        attend(device, plan, tokens, {head.k.data(), nullptr, host.d()},
               {head.v.data(), nullptr, host.dv()}, scaled));
  }
}

template <class T>
ExactAttention exact_attention_in(const Head& head, Index g, std::span<const Index> positions) {
  const KvHead& host = *head.host;
  const Index dv = host.dv();
  const auto m = static_cast<Index>(positions.size());
  ExactAttention out;
  out.output = MatrixD(m, dv);
  out.mass.resize(host.n());
  out.noticed.resize(out.mass.size());
  Array<double> mass(head.device, host.n());
  Array<std::uint8_t> noticed(head.device, host.n());
  mass.set_zero();
  noticed.set_zero();
  attend_causally<T>(
      head, g, positions, /*values=*/true, [&](Index begin, Index count, const Attended<T>& a) {
        head.device.launch(add_columns<T>, ceil_div(host.n(), kThreads), kThreads, a.weights.data(),
                           a.figures.data(), count, host.n(), mass.data(), noticed.data());
        a.numerators.get({out.output.row(begin), static_cast<std::size_t>(count * dv)});
        std::vector<Figures> figures(count);
        a.figures.get(figures);
        for (Index r = 0; r < count; ++r) {
          const Figures& f = figures[r];
          out.log_z.push_back(f.shift + std::log(f.total));
          out.p_norm.push_back(std::sqrt(f.square) / f.total);
          for (Index c = 0; c < dv; ++c) {
            out.output.row(begin + r)[c] /= f.total;
          }
        }
      });
  mass.get(out.mass);
  noticed.get(out.noticed);
  for (double& x : out.mass) {
    x /= static_cast<double>(m);
  }
  return out;
}

template <class T>
MatrixD exact_probabilities_in(const Head& head, Index g, std::span<const Index> positions) {
  const Index n = head.host->n();
  MatrixD out(static_cast<Index>(positions.size()), n);
  attend_causally<T>(
      head, g, positions, /*values=*/false, [&](Index begin, Index count, const Attended<T>& a) {
        std::vector<T> weights(count * n);
        std::vector<Figures> figures(count);
        a.weights.get(weights);
        a.figures.get(figures);
        for (Index r = 0; r < count; ++r) {
          for (Index i = 0; i < n; ++i) {
            out.row(begin + r)[i] = static_cast<double>(weights[r * n + i]) / figures[r].total;
          }
        }
      });
  return out;
}

template <class T>
std::vector<std::vector<double>> attention_sums_in(const Head& head, Range queries) {
  const KvHead& host = *head.host;
  const Range held{std::max(queries.begin, host.q_start()), queries.end};
  std::vector<Index> positions(held.size());
  std::iota(positions.begin(), positions.end(), held.begin);
  std::vector<std::vector<double>> out(host.group(), std::vector<double>(host.n()));
  Array<double> sums(head.device, host.n());
  for (Index g = 0; g < host.group(); ++g) {
    sums.set_zero();
    attend_causally<T>(head, g, positions, /*values=*/false,
                       [&](Index, Index count, const Attended<T>& a) {
                         head.device.launch(add_columns<T>, ceil_div(host.n(), kThreads), kThreads,
                                            a.weights.data(), a.figures.data(), count, host.n(),
                                            sums.data(), nullptr);
                       });
    sums.get(out[g]);
  }
  return out;
}

}  // namespace

ExactAttention exact_attention(const Head& head, Index g, std::span<const Index> positions) {
  return with_element(head.host->precision, [&](auto element) {
    return exact_attention_in<decltype(element)>(head, g, positions);
  });
}

MatrixD exact_probabilities(const Head& head, Index g, std::span<const Index> positions) {
  return with_element(head.host->precision, [&](auto element) {
    return exact_probabilities_in<decltype(element)>(head, g, positions);
  });
}

std::vector<std::vector<double>> attention_sums(const Head& head, Range queries) {
  return with_element(head.host->precision, [&](auto element) {
    return attention_sums_in<decltype(element)>(head, queries);
  });
}

}  // namespace kvbench::gpu
