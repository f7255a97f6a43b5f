// The memory that --memory-limit plans with (MethodInfo::copies, memory_need) against what malloc
// hands out, which is counted to the byte.
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

#include "algorithms/grid.hpp"
#include "extra_traces.hpp"
#include "make_trace.hpp"
#include "replay/job.hpp"
#include "replay/planner.hpp"
#include "replay/resources.hpp"
#include "replay/retrieval_job.hpp"
#include "replay/run.hpp"
#include "replay/stream_job.hpp"
#include "report_rows.hpp"

// Sanitizers have a malloc of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace kvbench::test_memory {
namespace {

std::atomic<bool> counting = false;
std::atomic<std::int64_t> held = 0;
std::atomic<std::int64_t> most_held = 0;

void count(std::int64_t bytes) {
  if (counting) {
    const std::int64_t now = held += bytes;
    std::int64_t most = most_held;
    while (now > most && !most_held.compare_exchange_weak(most, now)) {
    }
  }
}

std::int64_t size_of(void* block) {
  return static_cast<std::int64_t>(malloc_usable_size(block));  // 0 of a null pointer
}

void* counted(void* block) {
  count(size_of(block));
  return block;
}

}  // namespace
}  // namespace kvbench::test_memory

// glibc calls these in place of its own.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) {
  return kvbench::test_memory::counted(__libc_malloc(bytes));
}
void* calloc(std::size_t many, std::size_t bytes) {
  return kvbench::test_memory::counted(__libc_calloc(many, bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return kvbench::test_memory::counted(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return kvbench::test_memory::counted(__libc_memalign(alignment, bytes));
}
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  *block = kvbench::test_memory::counted(__libc_memalign(alignment, bytes));
  return *block == nullptr ? ENOMEM : 0;
}
void* realloc(void* block, std::size_t bytes) {
  const std::int64_t before = kvbench::test_memory::size_of(block);
  void* out = __libc_realloc(block, bytes);
  if (out != nullptr || bytes == 0) {
    kvbench::test_memory::count(-before);
    kvbench::test_memory::counted(out);
  }
  return out;
}
void free(void* block) {
  kvbench::test_memory::count(-kvbench::test_memory::size_of(block));
  __libc_free(block);
}
}

namespace kvbench::test_memory {
namespace {

using testing_rows::test_folder;

// The most bytes held during `act` beyond those held before.
std::uint64_t peak_of(const std::function<void()>& act) {
  held = most_held = 0;
  counting = true;
  act();
  counting = false;
  return static_cast<std::uint64_t>(most_held.load());
}

constexpr Index kQueries = 64;
constexpr Index kWidth = 64;

// Two query heads of one KV head, with all that a method may read.
std::string make_full_trace(Index n) {
  const std::string path = testing_replay::make_trace(
      test_folder() / "t.h5", {.tokens = {n},
                               .q_heads = 2,
                               .kv_heads = 1,
                               .d = kWidth,
                               .dv = kWidth,
                               .rope = testing_replay::rope_tables(n + 512, kWidth),
                               .hidden = 128});
  testing_traces::alter(path, "/prompts/p0/layers/0", [&](hid_t layer) {
    constexpr Index kChunk = 2048;
    const Index prompt = n - kQueries;
    for (Index first = 0; first < prompt; first += kChunk) {
      testing_traces::SegmentParts parts;
      const Index last = std::min(first + kChunk, prompt);
      parts.queries = last - first + 16;
      parts.from = static_cast<std::int32_t>(prompt);
      parts.prefix = prompt;
      parts.first = first;
      parts.last = last;
      parts.residual_norm.assign(parts.queries, 1.0F);
      testing_traces::put_segment(layer, "repeat", static_cast<int>(first / kChunk),
                                  {2, 1, n, n, kWidth, kWidth}, DType::float16, parts);
    }
    std::vector<float> scores(n);
    for (Index i = 0; i < n; ++i) {
      scores[i] = static_cast<float>(i * 7 % 11);
    }
    testing_traces::put_scores(layer, "s", 1, n, scores, prompt);
  });
  return path;
}

ReplayOptions options(const std::string& trace, Protocol protocol, const std::string& algorithm) {
  ReplayOptions o;
  o.traces = {trace};
  o.algorithms = {algorithm};
  o.protocol = protocol;
  o.sink = 4;
  o.recent = o.queries = kQueries;
  o.threads = 1;
  o.out = trace + ".csv";
  o.overwrite = true;
  return o;
}

// Opens the first head and runs its only job. Neither takes more than is planned for it.
void check_job(const ReplayOptions& o) {
  const Plan plan = make_plan(o);
  ASSERT_EQ(plan.entries.size(), 1U);
  const Unit& unit = plan.units.front();
  const MemoryNeed need = memory_need(plan, unit);
  const std::string what =
      o.algorithms[0] + (o.budgets.empty() ? "" : " " + std::to_string(o.budgets[0]));
  const auto job = [&](const auto& context) -> JobResult {
    if constexpr (std::is_same_v<decltype(context), const StreamContext&>) {
      return run_stream_job(context, plan.entries[0]);
    } else {
      return o.protocol == Protocol::retrieval
                 ? run_retrieval_job(context, plan.entries[0], nullptr)
                 : run_job(context, plan.entries[0]);
    }
  };
  const auto check = [&]<class Context>(std::optional<Context> context) {
    EXPECT_LE(peak_of([&] { context.emplace(plan, unit, 1); }), need.unit + need.thread()) << what;
    JobResult result;
    const std::uint64_t peak = peak_of([&] { result = job(std::as_const(*context)); });
    // malloc gives a block more than was asked for, how much depends on what was freed before.
    EXPECT_LE(peak - peak / 64, need.jobs.at(plan.variants[0].label())) << what;
    EXPECT_NE(status_kind(result.rows[0].status), "failed") << what << result.rows[0].status;
    if (std::getenv("KVBENCH_MEMORY_PRINT") != nullptr) {
      std::printf(
          "%s %s n=%ld: planned / peak = %.2f\n", std::string(name(o.protocol)).c_str(),
          what.c_str(), static_cast<long>(plan.layer_meta(unit).n),
          static_cast<double>(need.jobs.at(plan.variants[0].label())) / static_cast<double>(peak));
    }
  };
  if (o.protocol == Protocol::stream) {
    check(std::optional<StreamContext>());
  } else {
    check(std::optional<HeadContext>());
  }
}

class MethodMemory : public ::testing::TestWithParam<std::tuple<Protocol, Index>> {};

INSTANTIATE_TEST_SUITE_P(Protocols, MethodMemory,
                         ::testing::Combine(::testing::ValuesIn(kProtocols),
                                            ::testing::Values<Index>(512, 4096)));

TEST_P(MethodMemory, IsAtMostWhatIsPlanned) {
  const auto [protocol, n] = GetParam();
  const std::string trace = make_full_trace(n);
  for (const Variant& v : expand_algorithms({"all"}, protocol)) {
    for (const double budget : {0.1, 0.5}) {
      ReplayOptions o = options(trace, protocol, v.name());
      if (!v.sized()) {
        o.budgets = {budget};
      }
      check_job(o);
    }
  }
}

// Parameters that change a job's memory, and compositions.
TEST(SettingMemory, IsAtMostWhatIsPlanned) {
  const std::string trace = make_full_trace(2048);
  for (const char* algorithm : {"snapkv:window=256",
                                "h2o:ref=repeat",
                                "snapkv:ref=repeat",
                                "kvzip:plus=true",
                                "attention-matching:ridge=0",
                                "attention-matching:ref=repeat",
                                "attention-matching:ref_queries=64",
                                "attention-matching:keys=h2o",
                                "leverage:sketch=0",
                                "leverage:sketch=1024",
                                "compactor:sketch=1024",
                                "compactor:chunk=2048",
                                "expected-attention:rope=post",
                                "cam:prefill=once",
                                "lowrank:weight=queries",
                                "wildcat:per_bin=0",
                                "bumblebee:matrix_mib=0",
                                "balancekv:block=2048",
                                "h2o@quant-kivi",
                                "h2o@think",
                                "count-merge@quant-rotated",
                                "attention-matching@quant-kivi",
                                "h2o+quant-kivi",
                                "h2o+attention-matching",
                                "snapkv+balancekv",
                                "h2o:store=query-head",
                                "kvreviver:prefill=stream"}) {
    ReplayOptions o = options(trace, Protocol::prefill, algorithm);
    o.budgets = {0.5};
    check_job(o);
    o.precision = Precision::float64;
    check_job(o);
  }
  for (const char* algorithm :
       {"attention-matching:keys=omp;tokens=128", "clustergen:delta=0;samples=9;t=1024",
        "clustergen:delta=1e9;samples=1000000", "clustergen:delta=0;share=0.99"}) {
    check_job(options(trace, Protocol::prefill, algorithm));
  }
  for (const char* algorithm : {"topk:union=group", "topp:union=group", "static:A=h2o"}) {
    ReplayOptions o = options(trace, Protocol::retrieval, algorithm);
    o.budgets = {0.5};
    check_job(o);
  }
  check_job(options(trace, Protocol::retrieval, "magicpig:bits=1;tables=64"));
}

// Several heads and threads, surveys of shared budgets, side tables, errors of layers, caches: the
// whole run, from the first read to the last table.
TEST(RunMemory, StaysWithinTheLimit) {
  constexpr std::uint64_t kProgram = std::uint64_t{4} << 20;  // buffers of files and of HDF5
  const std::string trace =
      testing_replay::make_trace(test_folder() / "t.h5", {.tokens = {4096},
                                                          .q_heads = 4,
                                                          .kv_heads = 4,
                                                          .d = kWidth,
                                                          .dv = kWidth,
                                                          .hidden = 256,
                                                          .residual_norm = true});
  for (const char* algorithm : {"knorm", "h2o", "adakv", "kmeans"}) {
    ReplayOptions o = options(trace, Protocol::prefill, algorithm);
    o.budgets = {0.25, 0.5};
    o.threads = 8;
    o.kept = true;
    o.export_caches = trace + ".caches.h5";
    Plan plan = make_plan(o);
    plan.options.program_bytes = kProgram + shared_bytes(plan);
    plan.options.memory_limit =
        plan.options.program_bytes + memory_need(plan, plan.units.front()).total(1, 2);
    EXPECT_EQ(usable_threads(plan), 2) << algorithm;
    const std::atomic<bool> stop = false;
    EXPECT_LE(peak_of([&] { run_plan(plan, "test", stop); }), plan.options.memory_limit)
        << algorithm;
  }
}

}  // namespace
}  // namespace kvbench::test_memory

#endif
