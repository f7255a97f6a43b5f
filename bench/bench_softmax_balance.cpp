// The walk over one block of 256 tokens, beside what it cannot do without: its two Gram matrices by
// OpenBLAS (ssyrk computes one triangle, as the walk does), in the same run.
// Floor: nb^2 (d + dv) fused multiply-adds for both triangles.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include "attention/softmax_balance.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

struct Block {
  Block(Index nb, Index d) {
    HeadShape shape;
    shape.n = nb;
    shape.nq = 1;
    shape.d = d;
    shape.dv = d;
    shape.key_norm = 10.0;
    const KvHead head = make_head(shape, 1);
    gather_rows(head.k, positions(0, nb), keys);
    gather_rows(head.v, positions(0, nb), values);
    options.scale = head.scale;
    options.step = WalkStep::self;
  }
  Matrix keys, values;
  WalkOptions options;
};

double multiply_adds(Index nb, Index d) {
  return static_cast<double>(nb * nb * d);
}

void walk(benchmark::State& state) {
  const Index nb = state.range(0);
  const Index d = state.range(1);
  Block block(nb, d);
  const std::vector<double> weights(nb, 1.0);
  const std::vector<double> uniforms(nb, 0.3);
  std::vector<std::int8_t> signs(nb);
  WalkNumbers<float> scratch;
  for (auto _ : state) {
    Matrix keys = block.keys;  // centred in place
    benchmark::DoNotOptimize(
        softmax_balance(keys, block.values, weights, block.options, uniforms, signs, {}, scratch));
  }
  state.counters["multiply_adds/s"] = benchmark::Counter(
      2.0 * multiply_adds(nb, d) / 2.0, benchmark::Counter::kIsIterationInvariantRate);
}

void gram_by_openblas(benchmark::State& state) {
  const Index nb = state.range(0);
  const Index d = state.range(1);
  Block block(nb, d);
  Matrix out(nb, nb);
  openblas_set_num_threads(1);
  const auto rows = static_cast<int>(nb);
  const auto cols = static_cast<int>(d);
  for (auto _ : state) {
    for (const Matrix* m : {&block.keys, &block.values}) {
      cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, rows, cols, 1.0F, m->data(), cols, 0.0F,
                  out.data(), rows);
      benchmark::DoNotOptimize(out.data());
      benchmark::ClobberMemory();
    }
  }
  state.counters["multiply_adds/s"] = benchmark::Counter(
      2.0 * multiply_adds(nb, d) / 2.0, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(walk)->Args({256, 64})->Args({256, 128})->Unit(benchmark::kMicrosecond);
BENCHMARK(gram_by_openblas)->Args({256, 64})->Args({256, 128})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvbench
