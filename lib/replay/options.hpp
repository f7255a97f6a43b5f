// Everything that a user can ask of a replay, as enums and numbers: apps/ reads the texts. And what
// the plans of replay and cluster share: threads, memory and devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// What a user grants a run.
struct ResourceOptions {
  std::string device = "cpu";      ///< a plan sets it to what it names: cpu or cuda:i
  int threads = 0;                 ///< 0: all that the machine has; on a device at least 32
  std::uint64_t memory_limit = 0;  ///< bytes; 0: none
  /// Of the limit, what the program takes without a head, and shared_bytes().
  std::uint64_t program_bytes = 0;

  bool on_device() const { return device != "cpu"; }
};

/// `prefill` compresses the middle once; in a `stream` tokens come one by one.
enum class Protocol : std::uint8_t { prefill, stream };

constexpr std::string_view name(Protocol p) {
  return p == Protocol::stream ? "stream" : "prefill";
}

/// Queries that methods may score with: those before the evaluated ones, or all.
enum class Scores : std::uint8_t { past, all };

constexpr std::string_view name(Scores s) {
  return s == Scores::all ? "all" : "past";
}

/// Prefill: what OUT.queries.csv has a line for: bins of neighbouring evaluated queries
/// (report/query_bins.hpp), or each of them.
enum class PerQuery : std::uint8_t { none, bins, all };

constexpr std::string_view name(PerQuery p) {
  switch (p) {
    case PerQuery::none: return "none";
    case PerQuery::bins: return "bins";
    case PerQuery::all: return "all";
  }
  return "?";
}

/// Names and defaults are those of the command line.
struct ReplayOptions : ResourceOptions {
  std::vector<std::string> traces;
  std::string config;  ///< file that options came from; it is never written over
  std::string out;
  std::vector<std::string> algorithms;
  std::vector<double> budgets;  ///< each in [0, 1]; fractions of full bytes: of the middle, or of
                                ///< a whole stream
  std::string seeds = "1";
  std::vector<Index> layers;  ///< layer indices in the model; empty: all
  std::vector<Index> heads;   ///< query heads; empty: all
  /// Parts of `layers` and `heads` that were asked for as ranges: only some must be in a trace.
  std::vector<Range> layer_ranges, head_ranges;
  std::vector<std::string> prompts;
  Protocol protocol = Protocol::prefill;
  Precision precision = Precision::float32;
  Index sink = 16;       ///< tokens, >= 0
  Index recent = 512;    ///< tokens; under prefill >= queries
  Index queries = 256;   ///< >= 1
  Index eval_every = 0;  ///< stream: tokens between evaluated steps; 0: n / 64, at least 1
  Index repeat = 1;      ///< timed runs of a job, [1, 1000]; above 1, after one to warm up
  Scores scores = Scores::past;
  Index shard_index = 1;
  Index shard_count = 1;
  std::string shard_costs;  ///< calibration table that shards divide by; empty: by number
  bool kept = false;        ///< record kept tokens in OUT.kept.csv
  PerQuery per_query = PerQuery::none;
  std::string export_caches;        ///< caches file to write (docs/trace_format.md); empty: none
  std::vector<std::string> caches;  ///< evaluate: caches files to read; they give the protocol
  bool resume = false;
  bool extend = false;  ///< to resume, where the plan may have more than the table's had
  bool overwrite = false;
};

/// Throws InputError (option, got, expected) where a value is out of range or two do not go
/// together.
void check_options(const ReplayOptions& options);

/// Throws InputError for a number of threads that no machine has.
void check_threads(const ResourceOptions& options);

/// Threads that a run is to have if memory suffices. On a device they often wait for it.
int wanted_threads(const ResourceOptions& options);

/// Bytes of a device's free memory that may be planned with: a part is lost to fragments, and the
/// memory limit holds for devices too.
std::uint64_t device_memory(const ResourceOptions& options, std::uint64_t free_bytes);

/// What is stated, of what jobs ask for: the rest is for pages and the allocator.
inline constexpr double kMemoryMargin = 1.0 + 1.0 / 32;

/// Bytes that a head needs beside its threads, and that each thread needs, at most.
struct MemoryNeed {
  std::uint64_t unit = 0;
  std::uint64_t per_thread = 0;  ///< the largest job's
  std::uint64_t opening = 0;     ///< of a thread while heads are opened, when no job runs
  std::uint64_t surveys = 0;  ///< of heads that share budgets, while a head is open and no job runs
  std::map<std::string, std::uint64_t> jobs = {};  ///< the largest job of each method

  std::uint64_t thread() const { return std::max(per_thread, opening); }
  /// Of `heads` open heads and `threads` threads.
  std::uint64_t total(std::uint64_t heads, std::uint64_t threads) const {
    return std::max(heads * unit + threads * thread(), unit + surveys);
  }
  /// Adds what pages and the allocator take beside the blocks that were asked for.
  void add_margin();
};

/// How many of `threads` fit the memory limit beside the program and a head of this layer. Throws
/// InputError where none does, naming the methods whose jobs do not fit.
std::uint64_t threads_that_fit(const ResourceOptions& options, const MemoryNeed& need,
                               std::uint64_t threads, const PromptMeta& prompt,
                               const LayerMeta& layer);

}  // namespace kvbench
