// What a replay computes: jobs in a fixed order, as plain data. The dry run prints it, shards
// divide it, and a resumed run compares with it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/grid.hpp"
#include "replay/entries.hpp"
#include "replay/options.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// Trace, prompt, layer and KV head, as in Unit.
using UnitKey = std::tuple<std::size_t, std::size_t, std::size_t, Index>;

/// One KV head of one layer of one prompt. Ground truth and memory are counted per unit.
struct Unit {
  std::size_t trace = 0;   ///< index into PlanSpec::traces
  std::size_t prompt = 0;  ///< index into the trace's prompts
  std::size_t layer = 0;   ///< index into the prompt's layers; LayerMeta has the model's index
  Index kv_head = 0;
  std::vector<Index> q_heads;  ///< replayed query heads of the group, ascending

  std::array<std::size_t, 3> layer_key() const { return {trace, prompt, layer}; }
  UnitKey key() const { return {trace, prompt, layer, kv_head}; }
};

struct PlanSpec {
  ReplayOptions options;  ///< the user's; evaluate takes protocol and windows from the caches
  std::vector<TraceMeta> traces;         ///< in the order of options.traces
  std::vector<std::string> trace_names;  ///< file names without folders, unique
  std::vector<Variant> variants;
  std::vector<SpecRange> ranges;  ///< ranges a:b in --algorithm
  std::vector<Unit> units;
  Entries entries;
  bool reads_rope = false;    ///< some variant uses the rotary tables
  bool reads_o_proj = false;  ///< some variant uses the output projections
  /// Layers with lines in OUT.layers.csv, by layer_key: they have an output projection, and all
  /// their query heads are replayed.
  std::set<std::array<std::size_t, 3>> error_layers;

  std::string caches_sha256;  ///< evaluate: SHA-256 of the caches files; otherwise empty

  std::vector<std::string> notes;  ///< lines for the terminal: skipped methods and layers

  /// Variants whose parameters depend on the layer, or of a policy on the KV head: by layer_key, KV
  /// head (kAllHeads: the layer's) and index of the variant. Read them by variant_of().
  std::map<std::tuple<std::array<std::size_t, 3>, Index, std::size_t>, Variant> resolved;

  /// Why a variant of a set cannot run in a layer, by layer_key and index of the variant: its rows
  /// there are infeasible.
  std::map<std::pair<std::array<std::size_t, 3>, std::size_t>, std::string> lacking;
  /// That reason, or null.
  const std::string* lacks(const Unit& unit, std::size_t variant) const {
    const auto it = lacking.find({unit.layer_key(), variant});
    return it == lacking.end() ? nullptr : &it->second;
  }

  /// Number of jobs. Job j runs entry j % entries.size() on unit j / entries.size().
  Index jobs() const { return static_cast<Index>(units.size() * entries.size()); }
  const Unit& unit_of(Index job) const { return units[job / static_cast<Index>(entries.size())]; }
  Entry entry_of(Index job) const { return entries[entry_number(job)]; }
  std::size_t entry_number(Index job) const {
    return static_cast<std::size_t>(job) % entries.size();
  }
  static constexpr Index kAllHeads = -1;
  /// Variant number `variant` with all parameters resolved for the unit.
  const Variant& variant_of(const Unit& unit, std::size_t variant) const;
  const Variant& variant_of(const Unit& unit, const Entry& entry) const {
    return variant_of(unit, entry.variant);
  }
  /// The entry's budget; of a policy, that of the unit.
  std::optional<double> budget_of(const Unit& unit, const Entry& entry) const {
    const std::optional<double>& of_part = variant_of(unit, entry).policy_budget;
    return of_part ? of_part : entry.budget;
  }
  /// Units that stand for the unit's layer: each KV head if a policy chooses by head, otherwise the
  /// unit alone.
  std::vector<Unit> distinct_units(const Unit& unit, std::size_t variant) const;
  /// Whether OUT.layers.csv has lines for the unit's layer.
  bool makes_layer_error(const Unit& unit) const { return error_layers.contains(unit.layer_key()); }
  /// Units of the layer that `unit` belongs to. They are contiguous.
  Range layer_units(Index unit) const;
  /// Units of each layer, in order.
  std::vector<Range> layers() const;
  /// Jobs of this shard, contiguous; shards have equal numbers of jobs, but a layer with an error
  /// line is never divided.
  Range shard_jobs() const;
  /// Rows that the jobs make, as row numbers of the undivided file.
  Range row_range(Range job_range) const;
  bool stream() const { return options.protocol == Protocol::stream; }
  bool retrieval() const { return options.protocol == Protocol::retrieval; }
  const LayerMeta& layer_meta(const Unit& unit) const {
    return prompt_meta(unit).layers[unit.layer];
  }
  const PromptMeta& prompt_meta(const Unit& unit) const {
    return trace_meta(unit).prompts[unit.prompt];
  }
  const TraceMeta& trace_meta(const Unit& unit) const { return traces[unit.trace]; }
  /// Bytes of a token's key and value in the unit's layer, in the trace's dtype.
  Index pair_bytes(const Unit& unit) const {
    return (layer_meta(unit).d + layer_meta(unit).dv) * bytes_per_element(trace_meta(unit).dtype);
  }
  /// Prefill: each budget of the middle, descending, and its share of the whole cache's bytes.
  /// Empty for other protocols and total budgets.
  std::vector<std::pair<double, double>> budgets_of_cache() const;
  /// Hash of everything that determines the rows. Threads, shards and paths are not part of it.
  std::string hash() const;
};

/// What methods may know about a unit's layer before its heads are read.
LayerFacts layer_facts(const PlanSpec& plan, const Unit& unit);

struct ExtraNames {
  std::set<std::string> sets;    ///< of extra queries
  std::set<std::string> scores;  ///< stored scores
};

/// Returns the names that variants read and the unit's layer has.
ExtraNames extra_names(const PlanSpec& plan, const Unit& unit);

/// Returns how many scoring queries the variant asks for and how many the unit's trace has.
/// nullopt if the variant scores with no query.
std::optional<Variant::Queries> scoring_queries(const PlanSpec& plan, const Unit& unit,
                                                const Variant& variant);

/// Lines for the terminal: algorithms with fewer scoring queries than they ask for, and on how many
/// KV heads.
std::vector<std::string> scoring_notes(const PlanSpec& plan);

}  // namespace kvbench
