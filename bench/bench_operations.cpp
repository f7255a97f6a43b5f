// Whole operations on the heads of a trace, as a replay runs them: what bench/peers.py times beside
// its peers, on the same file. Layer 0 of prompt 0; one KV head per thread.
//   KVBENCH_BENCH_TRACE    the trace (default: tests/data/small.h5)
//   KVBENCH_BENCH_THREADS  threads (default: 1)
//   KVBENCH_BENCH_SIZE     tokens kept or centres (default: an eighth of the tokens)
//   KVBENCH_BENCH_OUT      a file for the last operation's result, float64, so that a peer's can be
//                          compared with it
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "algorithms/registry.hpp"
#include "algorithms/shared/count_sketch.hpp"
#include "attention/backend.hpp"
#include "attention/row_set.hpp"
#include "attention/scores.hpp"
#include "attention/truth.hpp"
#include "core/parallel.hpp"
#include "make_head.hpp"
#include "trace/reader.hpp"

namespace kvbench {
namespace {

constexpr Index kQueries = 256;

std::string setting(const char* name, const std::string& otherwise) {
  const char* given = std::getenv(name);
  return given != nullptr ? given : otherwise;
}

struct Input {
  Input() {
    const TraceReader reader(setting("KVBENCH_BENCH_TRACE", KVBENCH_TEST_DATA_DIR "/small.h5"));
    const Index count = reader.meta().prompts[0].layers[0].kv_heads;
    for (Index h = 0; h < count; ++h) {
      heads.push_back(reader.read_head(0, 0, h));
      heads.back().precision = Precision::float32;  // as in a replay
    }
    tokens = positions(0, heads[0].n());
    size = std::stol(setting("KVBENCH_BENCH_SIZE", std::to_string(heads[0].n() / 8)));
    threads = std::stoi(setting("KVBENCH_BENCH_THREADS", "1"));
  }
  std::vector<KvHead> heads;
  std::vector<Index> tokens;
  Index size = 0;
  int threads = 1;
};

const Input& input() {
  static const Input only;
  return only;
}

using Result = std::vector<double>;

// Results of all heads, one after another, to KVBENCH_BENCH_OUT.
void write(const std::vector<Result>& results) {
  const std::string path = setting("KVBENCH_BENCH_OUT", "");
  if (path.empty()) {
    return;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                             &std::fclose);
  for (const Result& r : results) {
    if (file == nullptr ||
        std::fwrite(r.data(), sizeof(double), r.size(), file.get()) != r.size()) {
      throw std::runtime_error("cannot write " + path);
    }
  }
}

// Times `of_head` over all heads. `as_result` makes a Result of what it returns, untimed.
template <class OfHead, class AsResult = std::identity>
void over_heads(benchmark::State& state, OfHead of_head, AsResult as_result = {}) {
  const Input& in = input();
  const auto count = static_cast<Index>(in.heads.size());
  std::vector<decltype(of_head(in.heads[0], Index{0}))> made(in.heads.size());
  for (auto _ : state) {
    const std::atomic<bool> stop = false;
    parallel_for(count, in.threads, stop, [&](Index h) { made[h] = of_head(in.heads[h], h); });
    benchmark::ClobberMemory();
  }
  std::vector<Result> results(made.size());
  std::ranges::transform(made, results.begin(), as_result);
  write(results);
}

Result as_doubles(const std::vector<Index>& numbers) {
  return {numbers.begin(), numbers.end()};
}

// Outputs of the last queries, query head after query head.
void truth(benchmark::State& state) {
  const int inner = input().heads.size() == 1 ? input().threads : 1;
  over_heads(state, [inner](const KvHead& head, Index) {
    Result out;
    for (Index g = 0; g < head.group(); ++g) {
      const ExactAttention a = exact_attention(head, g, kQueries, inner);
      out.insert(out.end(), a.output.data(), a.output.data() + kQueries * head.dv());
    }
    return out;
  });
}

// Scores of every query over its past, query head after query head.
void accumulated_attention(benchmark::State& state) {
  over_heads(state, [](const KvHead& head, Index) {
    Result out;
    for (const std::vector<double>& sums : attention_sums(head, {0, head.n()})) {
      out.insert(out.end(), sums.begin(), sums.end());
    }
    return out;
  });
}

void k_center_keys(benchmark::State& state) {
  over_heads(state, [](const KvHead& head, Index) {
    const auto rows = cpu_backend().rows(head, HeadRows::keys, input().tokens);
    const KCenter found = rows->k_center(input().size, 0);
    Result out = as_doubles(found.centers);
    out.insert(out.end(), found.radius.begin(), found.radius.end());
    return out;
  });
}

// As many clusters as delta makes; delta is the radius of `size` centres.
void online_clusters_keys(benchmark::State& state) {
  const Input& in = input();
  const double delta = cpu_backend()
                           .rows(in.heads[0], HeadRows::keys, in.tokens)
                           ->k_center(in.size, 0)
                           .radius.back();
  over_heads(state, [delta](const KvHead& head, Index) {
    const Clusters found = cpu_backend()
                               .rows(head, HeadRows::keys, input().tokens)
                               ->online_clusters(delta, std::numeric_limits<Index>::max());
    Result out = as_doubles(found.cluster);
    out.push_back(delta);
    return out;
  });
}

// Sums of all tokens in three rows of `size` cells, hashes included.
void sketch(benchmark::State& state) {
  over_heads(
      state,
      [](const KvHead& head, Index) {
        SketchShape shape;
        shape.cells = input().size;
        shape.d = head.d();
        shape.dv = head.dv();
        const Rng rng(1, {"p", 0, 0}, "sketch");
        auto s = std::make_unique<CountSketch>(shape, rng.stream("hashes"));
        s->fill(input().tokens, head.k, head.v);
        return s;
      },
      [](const std::unique_ptr<CountSketch>& s) {
        return Result{s->keys().data(), s->keys().data() + s->keys().rows() * s->keys().cols()};
      });
}

// A method's selection alone: compress() of `spec`, whose tokens are its result.
void method(benchmark::State& state, const std::string& name,
            std::map<std::string, std::string> given) {
  const Method& m = find_method(name);
  if (!given.contains("T")) {
    given.emplace("tokens", std::to_string(input().size));
  }
  const Params params(name, m.info.params, given);
  over_heads(state, [&](const KvHead& head, Index h) {
    const Task task{head, input().tokens,          std::nullopt, {0, head.n()},
                    {},   Rng(1, {"p", 0, h}, "m")};
    const Compressed c = m.compress(task, params);
    Result out = as_doubles(c.held.tokens);
    for (Index i = 0; i < c.made.k.rows() * c.made.k.cols(); ++i) {
      out.push_back(static_cast<double>(c.made.k.data()[i]));
    }
    return out;
  });
}

void softmax_balance_halvings(benchmark::State& state) {
  method(state, "balancekv", {{"T", "2"}});
}

// Facility location of keys alone, lazily, the matrix of similarities kept.
void facility_location_keys(benchmark::State& state) {
  method(state, "bumblebee",
         {{"lambda", "1"}, {"recent_share", "0"}, {"matrix_mib", "1024"}, {"optimizer", "lazy"}});
}

void lloyd(benchmark::State& state) {
  method(state, "kmeans", {});
}

void reading(benchmark::State& state) {
  const std::string path = setting("KVBENCH_BENCH_TRACE", KVBENCH_TEST_DATA_DIR "/small.h5");
  for (auto _ : state) {
    const TraceReader reader(path);
    for (Index h = 0; h < reader.meta().prompts[0].layers[0].kv_heads; ++h) {
      benchmark::DoNotOptimize(reader.read_head(0, 0, h));
    }
  }
}

#define KVBENCH_OPERATION(NAME) BENCHMARK(NAME)->Unit(benchmark::kMillisecond)->UseRealTime()
KVBENCH_OPERATION(truth);
KVBENCH_OPERATION(accumulated_attention);
KVBENCH_OPERATION(k_center_keys);
KVBENCH_OPERATION(online_clusters_keys);
KVBENCH_OPERATION(sketch);
KVBENCH_OPERATION(softmax_balance_halvings);
KVBENCH_OPERATION(facility_location_keys);
KVBENCH_OPERATION(lloyd);
KVBENCH_OPERATION(reading);

}  // namespace
}  // namespace kvbench
