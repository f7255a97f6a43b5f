// Options of a replay as enums and numbers (apps/ parses the text), and the threads, memory and
// devices of replay and cluster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/protocol.hpp"
#include "core/types.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// The only element of a list of layers: those without a window, or with one.
inline constexpr Index kGlobalLayers = -1;
inline constexpr Index kWindowedLayers = -2;

struct ResourceOptions {
  std::string device = "cpu";      ///< a plan sets it to `cpu` or `cuda:i`
  int threads = 0;                 ///< 0: all processors; on a device at least 32
  std::uint64_t memory_limit = 0;  ///< bytes; 0: none
  std::uint64_t program_bytes =
      0;  ///< part of the limit: the program without heads, shared_bytes()

  bool on_device() const { return device != "cpu"; }
};

/// Lines of OUT.queries.csv (prefill): bins of evaluated queries (query_bins), or each query.
enum class PerQuery : std::uint8_t { none, bins, all };

constexpr std::string_view name(PerQuery p) {
  switch (p) {
    case PerQuery::none: return "none";
    case PerQuery::bins: return "bins";
    case PerQuery::all: return "all";
  }
  return "?";
}

/// Traces, which of their heads, and the output. Names and defaults as on the command line.
struct TraceOptions : ResourceOptions {
  std::vector<std::string> traces;
  std::string config;  ///< configuration file; never overwritten
  std::string out;     ///< OUT.csv; cluster: a folder
  /// Layer indices in the model, or kGlobalLayers or kWindowedLayers; empty: all.
  std::vector<Index> layers;
  std::vector<Index> heads;  ///< query heads, of cluster KV heads; empty: all
  /// Ranges among `layers` and `heads`: only some of a range must be in a trace.
  std::vector<Range> layer_ranges, head_ranges;
  std::vector<std::string> prompts;  ///< empty: all
  bool overwrite = false;
};

/// Names and defaults as on the command line.
struct ReplayOptions : TraceOptions {
  std::vector<std::string> algorithms;
  std::vector<std::string> policies;  ///< policy files (algorithms/policy.hpp)
  std::vector<double> budgets;  ///< [0, 1], fractions of the full bytes: prefill and retrieval of
                                ///< the middle, stream of all tokens
  bool total_budget = false;  ///< prefill: budgets are of all tokens, the middle gets what is left
  std::string seeds = "1";
  Protocol protocol = Protocol::prefill;
  Precision precision = Precision::float32;
  Index sink = 16;       ///< tokens, >= 0
  Index recent = 512;    ///< tokens, >= 0; prefill: >= queries
  Index queries = 256;   ///< evaluated queries, >= 1
  Index eval_every = 0;  ///< stream: tokens between evaluated steps; 0: n / 64, at least 1
  Index repeat = 1;      ///< timed runs of a job, [1, 1000]; above 1 after a warm-up run
  Scores scores = Scores::past;
  Index shard_index = 1;  ///< [1, shard_count]
  Index shard_count = 1;
  bool kept = false;  ///< write OUT.kept.csv
  PerQuery per_query = PerQuery::none;
  std::string export_caches;        ///< caches file to write (docs/trace_format.md); empty: none
  std::vector<std::string> caches;  ///< evaluate: caches files to read
  bool resume = false;
  bool extend = false;    ///< with `resume`: the plan may have more than the table's plan
  bool keep_log = false;  ///< the log stays when the tables are whole
  /// Named algorithms too, not only those of sets, are infeasible in layers that they cannot run in
  /// (verify: the run may have named a set).
  bool infeasible_if_named = false;
};

/// Throws InputError (option, got, expected) if a value is out of range or two options contradict
/// each other.
void check_options(const ReplayOptions& options);

void check_threads(const ResourceOptions& options);

/// Threads that a run uses if memory suffices.
int wanted_threads(const ResourceOptions& options);

/// Bytes of a device's free memory that a plan may use: within the memory limit, less a sixteenth
/// for fragmentation.
std::uint64_t device_memory(const ResourceOptions& options, std::uint64_t free_bytes);

/// Stated bytes over requested bytes: a margin for pages and the allocator.
inline constexpr double kMemoryMargin = 1.0 + 1.0 / 32;

/// Upper bounds of memory, in bytes.
struct MemoryNeed {
  std::uint64_t unit = 0;        ///< of an open head
  std::uint64_t per_thread = 0;  ///< of a thread that runs the largest job
  std::uint64_t opening = 0;     ///< of a thread while heads are opened; no job runs then
  std::uint64_t surveys = 0;     ///< of surveys for shared budgets; one head is open, no job runs
  std::map<std::string, std::uint64_t> jobs = {};  ///< the largest job of each method

  std::uint64_t thread() const { return std::max(per_thread, opening); }
  /// With `heads` open heads and `threads` threads.
  std::uint64_t total(std::uint64_t heads, std::uint64_t threads) const {
    return std::max(heads * unit + threads * thread(), unit + surveys);
  }
  void add_margin();
};

/// Returns how many of `threads` fit the memory limit with one head of the layer. Throws InputError
/// if none fits, naming the methods whose jobs do not fit.
std::uint64_t threads_that_fit(const ResourceOptions& options, const MemoryNeed& need,
                               std::uint64_t threads, const PromptMeta& prompt,
                               const LayerMeta& layer);

}  // namespace kvbench
