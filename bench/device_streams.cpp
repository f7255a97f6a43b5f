// bench_device: what a replayed stream asks of a device. A whole stream is one thread block on one
// multiprocessor; NAME is one of them alone, NAME_32 as many at once, each from a thread of its
// own. `of_bound` holds them against that share of the card's arithmetic; what a step does one
// after another (sums in the CPU's order) is left out. tokens/s: positions of all streams.
#include <algorithm>
#include <atomic>

#include "algorithms/revive_cache.hpp"
#include "attention/estimator.hpp"
#include "attention/exact.hpp"
#include "core/parallel.hpp"
#include "core/rng.hpp"
#include "device_bench.hpp"

namespace kvbench::bench {
namespace {

constexpr int kAtOnce = 32;
constexpr Index kWindow = 256;
constexpr Index kSteps = 128;  // evaluated, of a batch

// Each step sums a quarter of the tokens for the group. flops: 2 (d + dv) per query and entry.
// bytes: 4 n (d + dv), 16 per entry of a list, 8 (d + dv + 2) per query.
void lists_of_steps(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  constexpr Index kParts = 4;
  MatrixD queries(kSteps * kGroup, kWidth);
  for (Index g = 0; g < kGroup; ++g) {
    const MatrixD last = scaled_queries(on.host, g, kSteps);
    for (Index s = 0; s < kSteps; ++s) {
      std::copy_n(last.row(s), kWidth, queries.row(s * kGroup + g));
    }
  }
  std::vector<std::vector<Index>> tokens;
  for (Index part = 0; part < kParts; ++part) {
    tokens.push_back(every(kParts, part, n));
  }
  std::vector<ListPiece> lists;
  double entries = 0.0;
  for (Index s = 0; s < kSteps; ++s) {
    ListPiece& list = lists.emplace_back();
    list.first_query = s * kGroup;
    list.queries = kGroup;
    list.piece.keys = on.host.k;
    list.piece.values = on.host.v;
    list.piece.rows = tokens[static_cast<std::size_t>(s % kParts)];
    entries += static_cast<double>(list.piece.rows.size());
  }
  const Work work{entries * kGroup * 4.0 * kWidth,
                  8.0 * elements(n) + 16.0 * entries +
                      16.0 * static_cast<double>(kSteps * kGroup) * (kWidth + 1)};
  bench.measure(state, work,
                [&] { benchmark::DoNotOptimize(on.device->list_sums(queries, lists)); });
}

// The last m queries of one query head. flops: 2 d per pair. bytes: 4 n d + 4 m d + 8 m n.
void probabilities(Bench& bench, benchmark::State& state, Index n) {
  const Resident& on = bench.resident(n);
  constexpr Index kRows = 32;
  const std::vector<Index> at = positions(n - kRows, n);
  const Work work{pairs(n, kRows) * 2.0 * kWidth,
                  4.0 * (elements(n) + elements(kRows)) + 8.0 * static_cast<double>(kRows * n)};
  bench.measure(state, work, [&] {
    benchmark::DoNotOptimize(exact_probabilities(on.host, 0, at, on.device.get()));
  });
}

// Products of streams: each of `rows` rows at each position with the tokens held there, which grow
// by one a position up to `most`. flops: 2 d each. bytes: 4 n d keys, 4 n d for each query head,
// `logged` n of decisions.
Work stream_work(Index n, Index steps, Index most, Index rows, double logged) {
  const Index growing = std::min(most, steps);
  const double held =
      pairs(growing, growing) + static_cast<double>(steps - growing) * static_cast<double>(most);
  return {held * 2.0 * elements(rows),
          4.0 * elements(n) * (1.0 + kGroup) + logged * static_cast<double>(n),
          static_cast<double>(n), 1};
}

// `run` on `streams` threads; they bring the same keys, each has a cache of its own.
void measure_streams(const Bench& bench, benchmark::State& state, const Work& one, int streams,
                     const std::function<void()>& run) {
  const auto count = static_cast<double>(streams);
  const Work work{one.flops * count, one.bytes * count, one.tokens * count, streams};
  const std::atomic<bool> stop = false;
  bench.measure(state, work, [&] { parallel_for(streams, streams, stop, [&](Index) { run(); }); });
}

// As h2o evicts: all tokens held are attended.
void evictions(Bench& bench, benchmark::State& state, Index n, int streams) {
  const Resident& on = bench.resident(n);
  EvictionRules rules;
  rules.kept = 4096;
  rules.window = kWindow;
  rules.protected_recent = rules.kept / 2;
  const Work work =
      stream_work(n, n, rules.kept + rules.window + 1, kGroup, double{sizeof(Eviction)});
  measure_streams(bench, state, work, streams,
                  [&] { benchmark::DoNotOptimize(on.device->evictions(rules)); });
}

// As bumblebee-stream retains: queries and the newcomer against the retained tokens. Members whose
// nearest neighbour left cost a row more each; how many depends on the keys, so none is counted.
void departures(Bench& bench, benchmark::State& state, Index n, int streams) {
  const Resident& on = bench.resident(n);
  RetentionRules rules;
  rules.kept = 1024;
  rules.window = kWindow;
  rules.lambda = 0.3;
  const Work work =
      stream_work(n, n - rules.window, rules.kept + 1, kGroup + 1, double{sizeof(std::int32_t)});
  measure_streams(bench, state, work, streams,
                  [&] { benchmark::DoNotOptimize(on.device->departures(rules)); });
}

// As kvreviver revives with a quarter of the cache: every token is attended.
void revive(Bench& bench, benchmark::State& state, Index n, int streams) {
  const Resident& on = bench.resident(n);
  SketchShape sketch;
  sketch.d = sketch.dv = kWidth;
  sketch.dtype = on.host.dtype;
  const ReviveOptions options;
  const RevivePlan plan =
      plan_revive(options, sketch, n - kWindow, n, n / 4 * on.host.pair_bytes());
  const ReviveCache cache(on.host, plan, options, RngStream(4, 0, 0));
  std::vector<ReviveStep> steps;
  for (Index j = 0; j < n; ++j) {
    steps.push_back({j, std::max<Index>(j - kWindow, -1), true});
  }
  const ReviveRules rules = cache.rules(steps);
  const Work work = stream_work(n, n, n, kGroup, double{sizeof(float)});
  measure_streams(bench, state, work, streams,
                  [&] { benchmark::DoNotOptimize(on.device->revive(rules)); });
}

}  // namespace

void add_streams(Bench& bench, const Math& math) {
  using State = benchmark::State;
  add(bench, math, "list_sums", kShort,
      [&bench](State& state) { lists_of_steps(bench, state, kShort); });
  add(bench, math, "exact_probabilities", kShort,
      [&bench](State& state) { probabilities(bench, state, kShort); });
  constexpr Index kRevived = 8192;
  for (const int streams : {1, kAtOnce}) {
    const std::string suffix = streams == 1 ? "" : "_" + std::to_string(streams);
    add(bench, math, "evictions" + suffix, kShort,
        [&bench, streams](State& state) { evictions(bench, state, kShort, streams); });
    add(bench, math, "departures" + suffix, kShort,
        [&bench, streams](State& state) { departures(bench, state, kShort, streams); });
    add(bench, math, "revive" + suffix, kRevived,
        [&bench, streams](State& state) { revive(bench, state, kRevived, streams); });
  }
}

}  // namespace kvbench::bench
