#include "replay/options.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/isa.hpp"

namespace kvbench {
namespace {

constexpr Index kMaxShards = 1000000;  // times the number of jobs it fits 64 bits

// For an error: the bytes of a thread, with the methods whose jobs exceed the limit.
std::string job_text(const ResourceOptions& o, const MemoryNeed& need) {
  if (need.surveys > need.thread()) {
    return fmt::format("{} for surveys of heads that share a budget", need.surveys);
  }
  if (need.jobs.empty() || need.opening > need.per_thread) {
    return fmt::format("{} for a thread", need.thread());
  }
  const auto by_bytes = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = std::ranges::max_element(need.jobs, by_bytes);
  std::vector<std::string> others;
  for (const auto& [method, bytes] : need.jobs) {
    if (method != most->first && o.program_bytes + need.unit + bytes > o.memory_limit) {
      others.push_back(method);
    }
  }
  return fmt::format("{} for a job of {}{}{}", most->second, most->first,
                     others.empty() ? "" : "; also too large: ", fmt::join(others, ", "));
}

}  // namespace

void check_options(const ReplayOptions& o) {
  const bool stream = o.protocol == Protocol::stream;
  check_input(!o.traces.empty(), "replay: no trace, expected at least one");
  check_input(o.sink >= 0, fmt::format("--sink: got {}, expected at least 0", o.sink));
  check_input(o.queries >= 1, fmt::format("--queries: got {}, expected at least 1", o.queries));
  check_input(stream || o.recent >= o.queries,
              fmt::format("--recent: got {}, expected at least --queries, which is {}", o.recent,
                          o.queries));
  check_input(o.recent >= 0, fmt::format("--recent: got {}, expected at least 0", o.recent));
  check_input(
      o.eval_every >= 0,
      fmt::format("--eval-every: got {}, expected at least 1, or 0 for n/64", o.eval_every));
  check_input(
      stream || o.eval_every == 0,
      fmt::format("--eval-every: got --protocol {}, expected --protocol stream", name(o.protocol)));
  check_input(!stream || o.scores == Scores::past,
              "--scores: got all, expected past under --protocol stream");
  constexpr Index kMaxRuns = 1000;
  check_input(o.repeat >= 1 && o.repeat <= kMaxRuns,
              fmt::format("--repeat: got {}, expected 1 to {}", o.repeat, kMaxRuns));
  for (const double b : o.budgets) {
    check_input(b >= 0.0 && b <= 1.0,
                fmt::format("--{}budget: got {}, expected fractions in [0, 1]",
                            o.total_budget ? "total-" : "", b));
  }
  check_input(o.shard_count <= kMaxShards && o.shard_index >= 1 && o.shard_index <= o.shard_count,
              fmt::format("--shard: got {}/{}, expected i/N with 1 <= i <= N <= {}", o.shard_index,
                          o.shard_count, kMaxShards));
  check_threads(o);
  check_input(
      !stream || o.per_query == PerQuery::none,
      "--per-query: got --protocol stream, expected prefill or retrieval (OUT.steps.csv has the "
      "errors of a stream)");
  check_input(!o.total_budget || (o.protocol == Protocol::prefill && o.policies.empty()),
              "--total-budget: expected --protocol prefill and no --policy");
  check_input(
      o.protocol == Protocol::prefill || o.policies.empty(),
      fmt::format("--policy: got --protocol {}, expected --protocol prefill", name(o.protocol)));
  check_input(
      o.protocol != Protocol::retrieval || (!o.kept && o.export_caches.empty()),
      "--kept, --export-caches: got --protocol retrieval, whose cache stays whole; expected "
      "prefill or stream");
  check_input(!(o.resume && o.overwrite), fmt::format("--{} and --overwrite exclude each other",
                                                      o.extend ? "extend" : "resume"));
  check_input(!o.extend || (o.shard_count == 1 && o.export_caches.empty() && o.caches.empty()),
              "--extend: expected no --shard, --export-caches or --caches");
}

void check_threads(const ResourceOptions& o) {
  constexpr int kMaxThreads = 1024;
  check_input(o.threads >= 0 && o.threads <= kMaxThreads,
              fmt::format("--threads: got {}, expected 0 to {}", o.threads, kMaxThreads));
  isa();  // throws before any work if KVBENCH_ISA is wrong
}

int wanted_threads(const ResourceOptions& o) {
  // Threads often wait for the device. More than 32 streams would share its work queues
  // (CUDA_DEVICE_MAX_CONNECTIONS).
  constexpr int kDeviceThreads = 32;
  if (o.threads > 0) {
    return o.threads;
  }
  return o.on_device() ? std::max(omp_get_num_procs(), kDeviceThreads) : omp_get_num_procs();
}

std::uint64_t device_memory(const ResourceOptions& o, std::uint64_t free_bytes) {
  const std::uint64_t usable = free_bytes - free_bytes / 16;
  return o.memory_limit > 0 ? std::min(usable, o.memory_limit) : usable;
}

void MemoryNeed::add_margin() {
  // The largest of 50 runs of one command took up to 2 % (0.6 MiB) more than the smallest.
  const auto add = [](std::uint64_t& bytes) {
    bytes = static_cast<std::uint64_t>(kMemoryMargin * static_cast<double>(bytes));
  };
  for (std::uint64_t* bytes : {&unit, &per_thread, &opening, &surveys}) {
    add(*bytes);
  }
  for (auto& [method, bytes] : jobs) {
    add(bytes);
  }
}

std::uint64_t threads_that_fit(const ResourceOptions& o, const MemoryNeed& need,
                               std::uint64_t threads, const PromptMeta& prompt,
                               const LayerMeta& layer) {
  if (o.memory_limit == 0) {
    return threads;
  }
  const std::uint64_t one = o.program_bytes + need.total(1, 1);
  check_input(one <= o.memory_limit,
              fmt::format("--memory-limit: got {} bytes, expected at least {} for prompt {} layer "
                          "{} (n = {}): {} for the program, {} for a KV head, {}",
                          o.memory_limit, one, prompt.id, layer.layer, layer.n, o.program_bytes,
                          need.unit, job_text(o, need)));
  return std::min(threads, (o.memory_limit - o.program_bytes - need.unit) / need.thread());
}

}  // namespace kvbench
