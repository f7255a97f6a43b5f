// The kernels of a CUDA device through the functions that methods call, uploads of heads left out,
// results brought back included: time between two points of the stream. The rates beside each are
// what the algorithm needs, whatever the kernels do beyond it:
//
//   flop/s    an FMA counts 2; exponentials, maxima and divisions are left out
//   bytes/s   inputs read once in float32 and results written once
//   tokens/s  positions, of whole streams
//   of_bound  the time that the slower of the first two takes at the card's own rate, over the time
//             taken; float64 FMAs bound exact math, products by tensor cores fast math, and a
//             stream those of the one multiprocessor that it runs on
//
// Dense attention, walks, centres and coverage are here, other kernels in device_rows.cpp and
// device_streams.cpp. The card's rates are measured first (device_rates.cuh), in the same program,
// and stand in the context of the JSON (--benchmark_out=FILE --benchmark_out_format=json). A name
// is MATH/KERNEL/n; bench/peer_torch.py does some KERNEL/n in PyTorch. Exit code 3: no device that
// can be used.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention/device.hpp"
#include "attention/estimator.hpp"
#include "attention/exact.hpp"
#include "attention/facility_location.hpp"
#include "attention/kcenter.hpp"
#include "attention/most_similar.hpp"
#include "attention/scores.hpp"
#include "attention/softmax_balance.hpp"
#include "core/error.hpp"
#include "device_bench.hpp"
#include "device_rates.cuh"

namespace kvbench::bench {

void Bench::measure(benchmark::State& state, const Work& work,
                    const std::function<void()>& run) const {
  StreamClock clock(kDevice);
  run();  // takes the memory that later calls find
  double seconds = 0.0;
  for (auto _ : state) {
    clock.start();
    run();
    const double once = clock.stop();
    state.SetIterationTime(once);
    seconds += once;
  }
  const auto say = [&state](const char* name, double per_call) {
    if (per_call > 0.0) {
      state.counters[name] =
          benchmark::Counter(per_call, benchmark::Counter::kIsIterationInvariantRate);
    }
  };
  say("flop/s", work.flops);
  say("bytes/s", work.bytes);
  say("tokens/s", work.tokens);
  if (math.flops > 0.0) {
    const double share =
        work.blocks > 0 ? std::min(1.0, static_cast<double>(work.blocks) / processors) : 1.0;
    const double bound = std::max(work.flops / (share * math.flops), work.bytes / copy_rate);
    state.counters["of_bound"] = bound * static_cast<double>(state.iterations()) / seconds;
  }
}

namespace {

constexpr Index kBlock = 256;  // tokens of a walk

// flops: 2 (d + dv) per pair and query head. bytes: 4 n (d + dv) + group (4 m d + 8 m dv + 9 n);
// the last term is masses and what was noticed.
void exact_attention_of_group(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  const auto group = static_cast<double>(kGroup);
  const Work work{
      group * pairs(n, kQueries) * 4.0 * kWidth,
      8.0 * elements(n) + group * (12.0 * elements(kQueries) + 9.0 * static_cast<double>(n))};
  bench.measure(state, work, [&] {
    for (Index g = 0; g < kGroup; ++g) {
      benchmark::DoNotOptimize(exact_attention(on.host, g, kQueries, 1, on.device.get()));
    }
  });
}

// flops: 2 d per pair and query head. bytes: 4 n d + group (4 m d + 8 n).
void attention_sums_of(Bench& bench, benchmark::State& state, Index n, Index m) {
  const Resident& on = bench.resident(n);
  const auto group = static_cast<double>(kGroup);
  const Work work{group * pairs(n, m) * 2.0 * kWidth,
                  4.0 * elements(n) + group * (4.0 * elements(m) + 8.0 * static_cast<double>(n))};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(attention_sums(on.host, {n - m, n}, on.device.get()));
  });
}

// Half of the tokens with weight 2. flops: 2 (d + dv) per query, query head and kept token. bytes:
// 4 kept (d + dv) + group (8 m d + 8 m dv + 16 m).
void partial_sums_of_half(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  const std::vector<Index> kept = every(2, 0, n);
  const auto rows = static_cast<Index>(kept.size());
  const auto group = static_cast<double>(kGroup);
  std::vector<MatrixD> queries;
  for (Index g = 0; g < kGroup; ++g) {
    queries.push_back(scaled_queries(on.host, g, kQueries));
  }
  const Work work{group * static_cast<double>(kQueries) * 4.0 * elements(rows),
                  8.0 * elements(rows) + group * 16.0 * (elements(kQueries) + kQueries)};
  bench.measure(state, work, [&] {
    for (const MatrixD& q : queries) {
      SoftmaxSums sums(q, kWidth, on.device.get());
      sums.add_rows(on.host.k, on.host.v, kept, {}, 2.0F, Part::both);
      Index degenerate = 0;
      benchmark::DoNotOptimize(sums.output(degenerate));
    }
  });
}

// flops: 2 (d + dv) + 2 for each of n (block - 1) / 2 pairs. bytes: 4 n (d + dv) + 33 n: a token's
// position, weight, uniform number, probability and sign.
void walk(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  const std::vector<Index> tokens = positions(0, n);
  const std::vector<double> weights(tokens.size(), 1.0);
  std::vector<double> uniforms(tokens.size());
  std::mt19937_64 generator(2);
  for (double& u : uniforms) {
    u = std::uniform_real_distribution<double>()(generator);
  }
  BalanceBlocks blocks;
  blocks.tokens = tokens;
  blocks.weights = weights;
  blocks.uniforms = uniforms;
  blocks.block = kBlock;
  blocks.options.step = WalkStep::self;
  blocks.options.scale = on.host.scale;
  std::vector<std::int8_t> signs(tokens.size());
  std::vector<double> probability(tokens.size());
  WalkScratch scratch;
  const auto count = static_cast<double>(n);
  const Work work{count * 0.5 * (kBlock - 1) * (4.0 * kWidth + 2.0),
                  8.0 * elements(n) + 33.0 * count};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(
        balance_blocks(on.host, blocks, signs, probability, scratch, on.device.get()));
  });
}

// flops: 3 d per row and centre. bytes: 4 n d per centre, since each must know the one before.
void centers(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  const std::vector<Index> rows = positions(0, n);
  const Work work{3.0 * kCenters * elements(n), 4.0 * kCenters * elements(n)};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(k_center(on.host.k, rows, kCenters, 0, on.device.get()));
  });
}

// A batch of gains. flops: 2 d per candidate and token. bytes: 8 n d unit keys, 4 n of best.
void gains(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  FacilityLocation coverage(on.host.k, positions(0, n), Similarity::relu, 0, on.device.get());
  coverage.add(1);
  constexpr Index kCandidates = FacilityLocation::kDeviceBatch;
  const std::vector<Index> candidates = every(n / kCandidates, 0, n);
  std::vector<std::int64_t> out(candidates.size());
  const Work work{2.0 * kCandidates * elements(n),
                  8.0 * elements(n) + 4.0 * static_cast<double>(n)};
  bench.measure(state, work, [&] {
    coverage.gains(candidates, out);
    benchmark::DoNotOptimize(out.data());
  });
}

// Every token's own gain: half of the n^2 similarities, 2 d flops each. bytes: 8 n d + 8 n.
void singletons(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  FacilityLocation coverage(on.host.k, positions(0, n), Similarity::relu, 0, on.device.get());
  const Work work{elements(n) * static_cast<double>(n + 1),
                  8.0 * elements(n) + 8.0 * static_cast<double>(n)};
  bench.measure(state, work, [&] { benchmark::DoNotOptimize(coverage.singletons()); });
}

// Half of the tokens kept. flops: 2 d per pair of a kept and another. bytes: 4 n d + 8 n.
void nearest_kept(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  const std::vector<Index> kept = every(2, 0, n);
  const std::vector<Index> others = every(2, 1, n);
  const Work work{
      2.0 * elements(static_cast<Index>(kept.size())) * static_cast<double>(others.size()),
      4.0 * elements(n) + 8.0 * static_cast<double>(n)};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(most_similar(on.host, kept, others, on.device.get()));
  });
}

void add_all(Bench& bench, const Math& math) {
  using State = benchmark::State;
  for (const Index n : {kShort, kLong}) {
    add(bench, math, "exact_attention", n,
        [&bench, n](State& state) { exact_attention_of_group(bench, state, n); });
    add(bench, math, "balance_blocks", n, [&bench, n](State& state) { walk(bench, state, n); });
  }
  add(bench, math, "attention_sums_all", kShort,
      [&bench](State& state) { attention_sums_of(bench, state, kShort, kShort); });
  add(bench, math, "attention_sums_last", kShort,
      [&bench](State& state) { attention_sums_of(bench, state, kShort, kQueries); });
  add(bench, math, "partial_sums", kShort,
      [&bench](State& state) { partial_sums_of_half(bench, state, kShort); });
  if (math.mode == GpuMath::exact) {  // fast leaves distances as they are
    add(bench, math, "k_center", kLong, [&bench](State& state) { centers(bench, state, kLong); });
  }
  add(bench, math, "coverage_gains", kShort,
      [&bench](State& state) { gains(bench, state, kShort); });
  add(bench, math, "coverage_singletons", kShort,
      [&bench](State& state) { singletons(bench, state, kShort); });
  add(bench, math, "most_similar", kShort,
      [&bench](State& state) { nearest_kept(bench, state, kShort); });
}

void say_rate(const char* name, double rate) {
  if (rate > 0.0) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", rate);
    benchmark::AddCustomContext(name, text);
  }
}

void run_all() {
  const DeviceInfo info = device_info(kDevice);
  CudaMachine machine(kDevice, kScratchBytes);
  const CardRates card = measure_card(machine);
  benchmark::AddCustomContext("card", info.model);
  benchmark::AddCustomContext("driver", info.driver);
  say_rate("copy_bytes_per_s", card.copy);
  say_rate("float64_fma_flops", card.float64_fma);
  say_rate("float64_matrix_flops", card.float64_matrix);
  say_rate("tf32_matrix_flops", card.tf32_matrix);
  say_rate("bf16_matrix_flops", card.bf16_matrix);

  Bench bench;
  bench.copy_rate = card.copy;
  bench.processors = multiprocessors(kDevice);
  const Math exact{"exact", GpuMath::exact, card.float64_fma};
  add_all(bench, exact);
  add_rows(bench, exact);
  add_streams(bench, exact);
  // float16, which fast works in, and bfloat16 have one rate.
  add_all(bench, Math{"fast", GpuMath::fast, card.bf16_matrix});
  benchmark::RunSpecifiedBenchmarks();
}

}  // namespace
}  // namespace kvbench::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  try {
    kvbench::bench::run_all();
  } catch (const kvbench::Error& e) {
    std::fprintf(stderr, "bench_device: %s\n", e.what());
    return 3;
  }
}
