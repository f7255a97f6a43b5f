// bench_device: clusters, choice, codes and merged rows. All but the clusters move and compare
// more than they compute, and bring rows or places back to the host, which `of_bound` leaves out.
#include <random>

#include "attention/delta_cover.hpp"
#include "attention/merge_rows.hpp"
#include "attention/quantize.hpp"
#include "attention/top_k.hpp"
#include "device_bench.hpp"

namespace kvbench::bench {
namespace {

// A delta that opens at most kCenters clusters. flops: 3 d per row and cluster that was there
// before it. bytes: 4 n d keys, 8 n clusters.
void clusters(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  const std::vector<Index> rows = positions(0, n);
  const DeviceHead* device = on.device.get();
  // Once for all repetitions: it takes dozens of covers.
  static const double delta = smallest_delta(on.host.k, rows, kCenters, device);
  const Cover cover = delta_cover(on.host.k, rows, delta, n, device);
  double compared = 0.0;
  for (const Index place : cover.representatives) {
    compared += static_cast<double>(n - 1 - place);
  }
  const Work work{3.0 * compared * kWidth, 4.0 * elements(n) + 8.0 * static_cast<double>(n)};
  bench.measure(state, work,
                [&] { benchmark::DoNotOptimize(delta_cover(on.host.k, rows, delta, n, device)); });
  state.counters["clusters"] = static_cast<double>(cover.representatives.size());
}

// Half of the scores, which come from the host. bytes: 8 n scores, 4 n places.
void largest_half(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  std::vector<double> scores(static_cast<std::size_t>(n));
  std::mt19937_64 generator(3);
  for (double& x : scores) {
    x = std::uniform_real_distribution<double>()(generator);
  }
  Work work;
  work.bytes = 12.0 * static_cast<double>(n);
  bench.measure(state, work,
                [&] { benchmark::DoNotOptimize(top_places(scores, n / 2, on.device.get())); });
}

// All keys in 4 bits, groups of 32. flops: 3 per number. bytes: 4 n d read and written, 8 n places.
void codes(Bench& bench, benchmark::State& state, Index n, GroupAlong along) {
  const Resident& on = bench.resident(n);
  const std::vector<Index> tokens = positions(0, n);
  const CodeFormat format{4, 32, along};
  const Work work{3.0 * elements(n), 8.0 * elements(n) + 8.0 * static_cast<double>(n)};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(read_back(on.host.k, tokens, format, on.device.get()));
  });
}

// Half of the tokens kept, each the mean of itself and the next. flops: 1 per number read. bytes:
// 4 n d read, 2 n d written, 16 n members and lists.
void means_of_two(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  RowMerge merge;
  merge.members = positions(0, n);
  for (Index i = 0; i < n; i += 2) {
    merge.lists.push_back({i, i + 2});
  }
  const Work work{elements(n), 6.0 * elements(n) + 16.0 * static_cast<double>(n)};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(merge_rows(on.host.k, merge, on.host.dtype, on.device.get()));
  });
}

}  // namespace

void add_rows(Bench& bench, const Math& math) {
  using State = benchmark::State;
  add(bench, math, "delta_cover", kShort,
      [&bench](State& state) { clusters(bench, state, kShort); });
  add(bench, math, "top_places", kLong,
      [&bench](State& state) { largest_half(bench, state, kLong); });
  add(bench, math, "read_back_tokens", kShort,
      [&bench](State& state) { codes(bench, state, kShort, GroupAlong::tokens); });
  add(bench, math, "read_back_channels", kShort,
      [&bench](State& state) { codes(bench, state, kShort, GroupAlong::channels); });
  add(bench, math, "merge_rows", kShort,
      [&bench](State& state) { means_of_two(bench, state, kShort); });
}

}  // namespace kvbench::bench
