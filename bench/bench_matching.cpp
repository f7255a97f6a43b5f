// The fits of attention-matching: bounded weights (R reference queries, B kept tokens), matching
// pursuit, and the whole method on a head of m tokens.
// Floors in multiply-adds: weights F^2 R / 2 for the Gram matrix of F free columns and 2 R B for
// each of some fifteen rounds (an interior point: min(R, B) R B / 2, and min(R, B)^3 / 6 for each
// of some fifteen factors); pursuit B R m; the method R m (2 d + dv) before any fit.
// bench/peer_scipy.py does the same steps in NumPy and SciPy on the same trace.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>

#include "algorithms/registry.hpp"
#include "algorithms/shared/bounded_least_squares.hpp"
#include "algorithms/shared/matching_pursuit.hpp"
#include "algorithms/shared/reference_attention.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

constexpr double kHigh = 20.085536923187668;  // exp(3)

KvHead head_of(Index m, Index rows, Index d) {
  HeadShape shape;
  shape.n = m + rows;
  shape.nq = rows;
  shape.d = shape.dv = d;
  shape.group = 1;
  shape.key_norm = 8.0;
  return make_head(shape, 1);
}

Task task_of(const KvHead& head, const std::vector<Index>& tokens, Index rows) {
  const Index m = std::ssize(tokens);
  return {head, tokens, std::nullopt, {m, m + rows}, {}, Rng(1, {"p", 0, 0}, "m")};
}

ReferenceAttention reference_of(const KvHead& head, const std::vector<Index>& tokens, Index rows) {
  const Task task = task_of(head, tokens, rows);
  return {task, reference_rows(head, task.scoring), KeyScore::none, ""};
}

void bounded_weights(benchmark::State& state) {
  const Index rows = state.range(0);
  const Index kept = state.range(1);
  const KvHead head = head_of(4 * kept, rows, 64);
  const std::vector<Index> tokens = positions(0, 4 * kept);
  const ReferenceAttention reference = reference_of(head, tokens, rows);
  const MatrixD e = reference.exponentials(head, positions(0, kept));
  for (auto _ : state) {
    const BoundedFit fit = bounded_least_squares(e, reference.mass(), 1.0, kHigh);
    benchmark::DoNotOptimize(fit.w.data());
  }
}

void pursuit(benchmark::State& state) {
  const Index rows = state.range(0);
  const Index kept = state.range(1);
  const Index m = 3584;
  const KvHead head = head_of(m, rows, 64);
  const std::vector<Index> tokens = positions(0, m);
  const ReferenceAttention reference = reference_of(head, tokens, rows);
  const MatrixD e = reference.exponentials(head, tokens);
  for (auto _ : state) {
    benchmark::DoNotOptimize(matching_pursuit(e, reference.mass(), kept, 1e-12, 1096.6));
  }
}

void whole_method(benchmark::State& state) {
  const Index m = state.range(0);
  const Index kept = state.range(1);
  const Index rows = state.range(2);
  const KvHead head = head_of(m, rows, 128);
  const std::vector<Index> tokens = positions(0, m);
  const Method& method = find_method("attention-matching");
  const Params params(method.info.name, method.info.params,
                      {{"tokens", std::to_string(kept)}, {"ref_queries", std::to_string(rows)}});
  const Task task = task_of(head, tokens, rows);
  for (auto _ : state) {
    const Compressed c = method.compress(task, params);
    benchmark::DoNotOptimize(c.made.v.data());
  }
}

BENCHMARK(bounded_weights)
    ->Args({768, 448})
    ->Args({768, 1792})
    ->Args({4096, 4096})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(pursuit)->Args({768, 224})->Args({768, 448})->Unit(benchmark::kMillisecond);
BENCHMARK(whole_method)
    ->Args({3584, 448, 768})
    ->Args({32768, 4096, 4096})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvbench
