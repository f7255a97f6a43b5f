// The whole run as one list of jobs in a fixed order, before anything is computed: what the dry run
// prints, what shards divide, and what a resumed run compares with.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/backend.hpp"
#include "gpu/device.hpp"
#include "replay/entries.hpp"
#include "replay/grid.hpp"
#include "replay/options.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// One KV head of one layer of one prompt: the unit of ground truth and of memory.
struct Unit {
  std::size_t trace = 0;  ///< positions in the plan's readers, its prompts and their layers
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
  std::vector<Index> q_heads;  ///< replayed query heads of the group, ascending

  /// Equal for the KV heads of one layer of one prompt.
  std::array<std::size_t, 3> layer_key() const { return {trace, prompt, layer}; }
};

/// Puts a head on a device; its arrays of scratch keep to so many bytes each.
using OpenDevice = std::function<std::unique_ptr<Backend>(const KvHead&, std::size_t)>;

class GivenCaches;
class ShardCosts;

struct Plan {
  ReplayOptions options;  ///< as given, but for what the protocol decides
  std::vector<TraceReader> readers;
  std::vector<std::string> trace_names;  ///< file names without folders, all different
  std::vector<Variant> variants;
  std::vector<SpecRange> ranges;  ///< of the algorithms' parameters
  std::vector<Unit> units;
  Entries entries;
  OpenDevice open_device;  ///< empty: everything on the CPU
  std::size_t scratch_bytes = std::size_t{1} << 28;
  bool reads_rope = false;    ///< whether some variant uses the traces' rotary tables
  bool reads_o_proj = false;  ///< the same of the layers' output projections
  /// Layers that OUT.layers.csv has lines of, by layer_key: those with an output projection of
  /// which all query heads are replayed.
  std::set<std::array<std::size_t, 3>> error_layers;
  Index heads_at_once = 1;  ///< on a device: heads whose jobs run together, at most

  /// evaluate: the caches that take the place of methods; else null.
  std::shared_ptr<const GivenCaches> caches;

  /// What jobs take, where shards are of equal time; else null, and they are of equal number.
  std::shared_ptr<const ShardCosts> shard_costs;

  /// Lines for the terminal: which methods of a set are left out, and what a layer lacks;
  /// which layers OUT.layers.csv leaves out.
  std::vector<std::string> left_out;

  /// Variants as they run where they depend on the layer, by layer_key and number; variant_of asks
  /// here first.
  std::map<std::pair<std::array<std::size_t, 3>, std::size_t>, Variant> resolved;

  /// Job j runs entry j % entries on unit j / entries.
  Index jobs() const { return static_cast<Index>(units.size() * entries.size()); }
  const Unit& unit_of(Index job) const { return units[job / static_cast<Index>(entries.size())]; }
  Entry entry_of(Index job) const { return entries[entry_number(job)]; }
  std::size_t entry_number(Index job) const {
    return static_cast<std::size_t>(job) % entries.size();
  }
  /// What an entry runs on a unit, all parameters resolved.
  const Variant& variant_of(const Unit& unit, const Entry& entry) const;
  /// Whether OUT.layers.csv has lines of the unit's layer.
  bool makes_layer_error(const Unit& unit) const { return error_layers.contains(unit.layer_key()); }
  /// Numbers of the units of one layer, which follow each other; `unit`: any of them.
  Range layer_units(Index unit) const;
  /// Those of every layer, in order.
  std::vector<Range> layers() const;
  /// Jobs of this shard: a contiguous part, so that no two shards share many units; of shards with
  /// costs perhaps an empty one. No shard cuts a layer whose error is made.
  Range shard_jobs() const;
  /// Rows of the undivided file that the jobs make.
  Range row_range(Range job_range) const;
  bool stream() const { return options.protocol == Protocol::stream; }
  const LayerMeta& layer_meta(const Unit& unit) const {
    return prompt_meta(unit).layers[unit.layer];
  }
  const PromptMeta& prompt_meta(const Unit& unit) const {
    return readers[unit.trace].meta().prompts[unit.prompt];
  }
  /// Hash of everything that decides which rows there are and what they hold; not of threads,
  /// shards or paths.
  std::string hash() const;
};

/// What methods are told of a unit's layer before its heads are read.
LayerFacts layer_facts(const Plan& plan, const Unit& unit);

/// Names of the sets of extra queries and of the scores of the unit's layer that variants read.
struct AskedExtra {
  std::set<std::string> sets;
  std::set<std::string> scores;
};

AskedExtra asked_extra(const Plan& plan, const Unit& unit);

/// What a variant's definition asks of the queries that score, and what the unit's trace holds.
/// Nothing where the variant scores with none.
std::optional<Variant::Queries> scoring_queries(const Plan& plan, const Unit& unit,
                                                const Variant& variant);

/// Lines for the terminal: which algorithms have fewer queries to score with than they ask for, and
/// on how many KV heads. Empty where all have what they ask for.
std::vector<std::string> scoring_notes(const Plan& plan);

/// Opens the traces and lists the jobs. Errors: InputError (bad option, a layer, head or prompt
/// that no trace has, a method without a size, two traces of one name, a stream of a layer whose
/// queries are not all stored, a method that is named and needs what a layer lacks, a calibration
/// that says nothing of the plan), IoError (device absent).
Plan make_plan(const ReplayOptions& options);

/// Chooses how many heads are on the device at a time, and how much of its memory a job's arrays
/// may take. Throws IoError where a head and its jobs do not fit. Nothing where the plan is for the
/// CPU.
void plan_device(Plan& plan, const DeviceChoice& device);

/// Bytes that a unit and its jobs need under the plan's protocol, at most.
MemoryNeed memory_need(const Plan& plan, const Unit& unit);

/// Threads that the run will use under the memory limit. Errors: InputError where one does not fit.
int usable_threads(const Plan& plan);

/// Bytes at most of the heads' shares of common budgets, which stay for the run.
std::uint64_t shared_bytes(const Plan& plan);

/// KV heads whose jobs run together: plan.heads_at_once, on the CPU as many as give every thread a
/// job; fewer where `threads` jobs leave less memory under the limit.
Index heads_at_once(const Plan& plan, int threads);

}  // namespace kvbench
