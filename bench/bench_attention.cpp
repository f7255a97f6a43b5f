// Ground truth and estimator of 256 queries, one thread, beside the two products that they cannot
// do without by OpenBLAS (dgemm), in the same run. Floor: 2 m n (d + dv) floating-point operations,
// and m n exponentials.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include "attention/estimator.hpp"
#include "attention/scores.hpp"
#include "attention/truth.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

constexpr Index kQueries = 256;

KvHead head_of(Index n, Index d, Precision precision) {
  HeadShape shape;
  shape.n = n;
  shape.nq = n;
  shape.d = d;
  shape.dv = d;
  shape.group = 1;
  KvHead head = make_head(shape, 1);
  head.precision = precision;
  return head;
}

Precision precision_of(const benchmark::State& state) {
  return state.range(2) == 32 ? Precision::float32 : Precision::float64;
}

void count(benchmark::State& state, double m, double n, double d) {
  state.counters["flop/s"] =
      benchmark::Counter(4.0 * m * n * d, benchmark::Counter::kIsIterationInvariantRate);
}

void truth(benchmark::State& state) {
  const KvHead head = head_of(state.range(0), state.range(1), precision_of(state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(exact_attention(head, 0, kQueries, 1));
  }
  count(state, kQueries, static_cast<double>(head.n()), static_cast<double>(head.d()));
}

void estimator(benchmark::State& state) {
  const KvHead head = head_of(state.range(0), state.range(1), precision_of(state));
  const MatrixD q = scaled_queries(head, 0, kQueries);
  const std::vector<Index> tokens = positions(0, head.n());
  for (auto _ : state) {
    SoftmaxSums sums(q, head.dv(), head.precision);
    sums.add_rows(head.k, head.v, tokens, {}, 2.0F, SoftmaxPart::both);
    benchmark::DoNotOptimize(sums.output());
  }
  count(state, kQueries, static_cast<double>(head.n()), static_cast<double>(head.d()));
}

void column_sums(benchmark::State& state) {
  const KvHead head = head_of(state.range(0), state.range(1), precision_of(state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(attention_sums(head, {0, head.n()}));
  }
  // Half of the n x n logits lie in the past; one product.
  const auto n = static_cast<double>(head.n());
  count(state, n / 4.0, n, static_cast<double>(head.d()));
}

void products_by_openblas(benchmark::State& state) {
  const auto n = static_cast<int>(state.range(0));
  const auto d = static_cast<int>(state.range(1));
  const KvHead head = head_of(n, d, Precision::float64);
  MatrixD keys, values;
  gather_rows(head.k, positions(0, n), keys);
  gather_rows(head.v, positions(0, n), values);
  const MatrixD q = scaled_queries(head, 0, kQueries);
  MatrixD p(kQueries, n);
  MatrixD out(kQueries, d);
  const auto narrow = [](const MatrixD& m) {
    return std::vector<float>(m.data(), m.data() + m.rows() * m.cols());
  };
  const std::vector<float> k32 = narrow(keys);
  const std::vector<float> v32 = narrow(values);
  const std::vector<float> q32 = narrow(q);
  std::vector<float> p32 = narrow(p);
  std::vector<float> out32 = narrow(out);
  openblas_set_num_threads(1);
  for (auto _ : state) {
    if (precision_of(state) == Precision::float32) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kQueries, n, d, 1.0F, q32.data(), d,
                  k32.data(), d, 0.0F, p32.data(), n);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kQueries, d, n, 1.0F, p32.data(), n,
                  v32.data(), d, 0.0F, out32.data(), d);
      benchmark::DoNotOptimize(out32.data());
      benchmark::ClobberMemory();
      continue;
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kQueries, n, d, 1.0, q.data(), d,
                keys.data(), d, 0.0, p.data(), n);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kQueries, d, n, 1.0, p.data(), n,
                values.data(), d, 0.0, out.data(), d);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  count(state, kQueries, n, d);
}

// The last argument: bits of the element type.
const std::vector<std::vector<std::int64_t>> kShapes = {
    {2048, 64, 32}, {2048, 64, 64}, {16384, 128, 32}, {16384, 128, 64}};

void shapes(benchmark::internal::Benchmark* benchmark) {
  for (const auto& shape : kShapes) {
    benchmark->Args(shape);
  }
  benchmark->Unit(benchmark::kMillisecond);
}

BENCHMARK(truth)->Apply(shapes);
BENCHMARK(estimator)->Apply(shapes);
BENCHMARK(products_by_openblas)->Apply(shapes);
BENCHMARK(column_sums)
    ->Args({2048, 64, 32})
    ->Args({4096, 64, 32})
    ->Args({4096, 64, 64})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvbench
