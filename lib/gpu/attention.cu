#include <cmath>
#include <numeric>

#include "gpu/attend.cuh"
#include "gpu/operations.cuh"

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

constexpr Index kLanes = 8;  // partial sums of a token, enough threads to fill a device

/// sums [kLanes, n] += probabilities of weights [rows, n]: query r, `first` + r in all, enters lane
/// (first + r) % kLanes, in order, so that sums do not depend on the rows of a launch. Sets
/// noticed[i] above the threshold; `noticed` may be null.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_columns(const T* weights, const Figures* figures, Index first, Index rows, Index n,
                double* sums, std::uint8_t* noticed) {
  constexpr int kAhead = 8;  // rows that a thread loads together
  const Index blocks = ceil_div(n, kThreads);
  const Index i = Index{blockIdx.x} % blocks * kThreads + threadIdx.x;
  const Index lane = Index{blockIdx.x} / blocks;
  if (i >= n) {
    return;
  }
  double sum = sums[lane * n + i];
  bool above = false;
  for (Index r = (lane + kLanes - first % kLanes) % kLanes; r < rows; r += kAhead * kLanes) {
    T w[kAhead];
    double total[kAhead];
    KVB_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const Index row = r + a * kLanes;
      w[a] = row < rows ? weights[row * n + i] : T{0};
      total[a] = row < rows ? figures[row].total : 1.0;
    }
    KVB_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      sum += static_cast<double>(w[a]) / total[a];
      above = above || static_cast<double>(w[a]) > kAmnesiaThreshold * total[a];
    }
  }
  sums[lane * n + i] = sum;
  if (noticed != nullptr && above) {
    noticed[i] = 1;
  }
}

/// out [n]: lanes of `sums`, added in order.
__global__ void join_lanes(const double* sums, Index n, double* out) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) {
    double sum = 0.0;
    KVB_UNROLL
    for (Index lane = 0; lane < kLanes; ++lane) {
      sum += sums[lane * n + i];
    }
    out[i] = sum;
  }
}

// Sums over queries of each token's probability.
class ColumnSums {
 public:
  ColumnSums(const Device& device, Index n)
      : device_(device), n_(n), lanes_(device, kLanes * n), joined_(device, n) {}

  void clear() { lanes_.set_zero(); }
  /// Adds queries first, ..., first + rows - 1, which must follow those before.
  template <class T>
  void add(const Attended<T>& a, Index first, Index rows, std::uint8_t* noticed = nullptr) {
    device_.launch(add_columns<T>, ceil_div(n_, kThreads) * kLanes, kThreads, a.weights.data(),
                   a.figures.data(), first, rows, n_, lanes_.data(), noticed);
  }
  void get(std::span<double> to) const {
    device_.launch(join_lanes, ceil_div(n_, kThreads), kThreads, lanes_.data(), n_, joined_.data());
    joined_.get(to);
  }

 private:
  const Device& device_;
  Index n_;
  Array<double> lanes_, joined_;
};

// Queries at `positions` attend to all tokens that they see, as many at a time as fit scratch.
// Calls use(first, count, attended) with weights [queries, n].
template <class T, class Use>
void attend_causally(const DeviceHead& head, Index g, std::span<const Index> positions, bool values,
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
    plan.add(0, 0, n, seen, values, sink_logit(host, g));
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
ExactAttention exact_attention_in(const DeviceHead& head, Index g,
                                  std::span<const Index> positions) {
  const KvHead& host = *head.host;
  const Index dv = host.dv();
  const auto m = static_cast<Index>(positions.size());
  ExactAttention out;
  out.output = MatrixD(m, dv);
  out.mass.resize(host.n());
  out.noticed.resize(out.mass.size());
  ColumnSums mass(head.device, host.n());
  Array<std::uint8_t> noticed(head.device, host.n());
  mass.clear();
  noticed.set_zero();
  attend_causally<T>(
      head, g, positions, /*values=*/true, [&](Index begin, Index count, const Attended<T>& a) {
        mass.add(a, begin, count, noticed.data());
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
MatrixD exact_probabilities_in(const DeviceHead& head, Index g, std::span<const Index> positions) {
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
std::vector<std::vector<double>> attention_sums_in(const DeviceHead& head, Range queries) {
  const KvHead& host = *head.host;
  const Range held{std::max(queries.begin, host.q_start()), queries.end};
  std::vector<Index> positions(held.size());
  std::iota(positions.begin(), positions.end(), held.begin);
  std::vector<std::vector<double>> out(host.group(), std::vector<double>(host.n()));
  ColumnSums sums(head.device, host.n());
  for (Index g = 0; g < host.group(); ++g) {
    sums.clear();
    attend_causally<T>(
        head, g, positions, /*values=*/false,
        [&](Index begin, Index count, const Attended<T>& a) { sums.add(a, begin, count); });
    sums.get(out[g]);
  }
  return out;
}

}  // namespace

ExactAttention exact_attention(const DeviceHead& head, Index g, std::span<const Index> positions) {
  return with_element(head.host->precision, [&](auto element) {
    return exact_attention_in<decltype(element)>(head, g, positions);
  });
}

MatrixD exact_probabilities(const DeviceHead& head, Index g, std::span<const Index> positions) {
  return with_element(head.host->precision, [&](auto element) {
    return exact_probabilities_in<decltype(element)>(head, g, positions);
  });
}

std::vector<std::vector<double>> attention_sums(const DeviceHead& head, Range queries) {
  return with_element(head.host->precision, [&](auto element) {
    return attention_sums_in<decltype(element)>(head, queries);
  });
}

}  // namespace kvbench::gpu
