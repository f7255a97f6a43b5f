// What a replay computes: one list of jobs in a fixed order. Plain data, without open files,
// devices or callbacks. The dry run prints it, shards divide it, and a resumed run compares with
// it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "replay/entries.hpp"
#include "replay/grid.hpp"
#include "replay/options.hpp"
#include "replay/shard_costs.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// One KV head of one layer of one prompt: the unit of ground truth and of memory.
struct Unit {
  std::size_t trace = 0;  ///< indices of the plan's traces, their prompts, and their layers
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
  std::vector<Index> q_heads;  ///< replayed query heads of the group, ascending

  /// Equal for the KV heads of one layer of one prompt.
  std::array<std::size_t, 3> layer_key() const { return {trace, prompt, layer}; }
};

struct PlanSpec {
  ReplayOptions options;                 ///< as given, but for what the protocol decides
  std::vector<TraceMeta> traces;         ///< what the traces declare, in the order of the options
  std::vector<std::string> trace_names;  ///< file names without folders, all different
  std::vector<Variant> variants;
  std::vector<SpecRange> ranges;  ///< of the algorithms' parameters
  std::vector<Unit> units;
  Entries entries;
  bool reads_rope = false;    ///< whether some variant uses the traces' rotary tables
  bool reads_o_proj = false;  ///< the same of the layers' output projections
  /// Layers that OUT.layers.csv has lines of, by layer_key: those with an output projection of
  /// which all query heads are replayed.
  std::set<std::array<std::size_t, 3>> error_layers;

  /// evaluate: SHA-256 of the caches files that take the place of methods; else empty.
  std::string caches_sha256;

  /// Time of the jobs, where shards are of equal time. Null: shards have equal numbers of jobs.
  std::shared_ptr<const ShardCosts> shard_costs;

  /// Lines for the terminal: methods of a set that are skipped and what a layer lacks for them;
  /// layers that OUT.layers.csv skips.
  std::vector<std::string> notes;

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
    return trace_meta(unit).prompts[unit.prompt];
  }
  const TraceMeta& trace_meta(const Unit& unit) const { return traces[unit.trace]; }
  /// Hash of everything that decides which rows there are and what they hold; not of threads,
  /// shards or paths.
  std::string hash() const;
};

/// What methods know of a unit's layer before its heads are read.
LayerFacts layer_facts(const PlanSpec& plan, const Unit& unit);

/// Names of the sets of extra queries and of the scores of the unit's layer that variants read.
struct AskedExtra {
  std::set<std::string> sets;
  std::set<std::string> scores;
};

AskedExtra asked_extra(const PlanSpec& plan, const Unit& unit);

/// What a variant's definition asks of the queries that score, and what the unit's trace holds.
/// Nothing where the variant scores with none.
std::optional<Variant::Queries> scoring_queries(const PlanSpec& plan, const Unit& unit,
                                                const Variant& variant);

/// Lines for the terminal: which algorithms have fewer queries to score with than they ask for, and
/// on how many KV heads. Empty where all have what they ask for.
std::vector<std::string> scoring_notes(const PlanSpec& plan);

}  // namespace kvbench
