// The whole run as one list of jobs in a fixed order, before anything is computed: what the dry run
// prints, what shards divide, and what a resumed run compares with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "attention/device.hpp"
#include "replay/grid.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Everything that a user can ask of a replay; names and defaults as on the command line.
struct ReplayOptions {
  std::vector<std::string> traces;
  std::string out;
  std::vector<std::string> algorithms;
  std::vector<double> budgets;  ///< each in [0, 1]; fractions of full bytes: of the middle, or of
                                ///< a whole stream
  std::string seeds = "1";
  std::vector<Index> layers;  ///< layer indices in the model; empty: all
  std::vector<Index> heads;   ///< query heads; empty: all
  std::vector<std::string> prompts;
  std::string protocol = "prefill";
  Index sink = 16;       ///< tokens, >= 0
  Index recent = 512;    ///< tokens; under prefill >= queries
  Index queries = 256;   ///< >= 1
  Index eval_every = 0;  ///< stream: tokens between evaluated steps; 0: n / 64, at least 1
  std::string scores = "past";
  std::string device = "cpu";      ///< make_plan sets it to what it names: cpu or cuda:i
  std::string gpu_math = "exact";  ///< exact: selections to the bit as on the CPU; or fast
  int threads = 0;                 ///< 0: all that the machine has; on a device at least 32
  std::uint64_t memory_limit = 0;  ///< bytes; 0: none
  Index shard_index = 1;
  Index shard_count = 1;
  bool kept = false;                ///< record kept tokens in OUT.kept.csv
  bool per_query = false;           ///< prefill: a line per evaluated query in OUT.queries.csv
  std::string export_caches;        ///< caches file to write (docs/caches.md); empty: none
  std::vector<std::string> caches;  ///< evaluate: caches files to judge; they give the protocol
  bool resume = false;
  bool overwrite = false;
};

/// One KV head of one layer of one prompt: the unit of ground truth and of memory.
struct Unit {
  std::size_t trace = 0;  ///< positions in the plan's readers, its prompts and their layers
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
  std::vector<Index> q_heads;  ///< replayed query heads of the group, ascending
};

/// Whether two units are KV heads of one layer of one prompt.
bool same_layer(const Unit& a, const Unit& b);

/// What is run on every unit.
struct Entry {
  std::size_t variant = 0;
  std::optional<double> budget;
  std::uint64_t seed = 0;
  std::size_t cache_group = 0;  ///< evaluate: which of GivenCaches' groups
};

/// Puts a head on a device; its arrays of scratch keep to so many bytes each.
using OpenDevice = std::function<std::unique_ptr<DeviceHead>(const KvHead&, std::size_t)>;

class GivenCaches;

struct Plan {
  ReplayOptions options;  ///< as given, but for what the protocol settles
  std::vector<TraceReader> readers;
  std::vector<std::string> trace_names;  ///< file names without folders, all different
  std::vector<Variant> variants;
  std::vector<Unit> units;
  std::vector<Entry> entries;
  OpenDevice open_device;  ///< empty: everything on the CPU
  OpenDevice open_exact;   ///< the same in exact mode, where open_device is another; else empty
  std::size_t scratch_bytes = std::size_t{1} << 28;
  bool reads_rope = false;    ///< whether some variant uses the traces' rotary tables
  bool reads_o_proj = false;  ///< the same of the layers' output projections
  /// Layers that OUT.layers.csv has lines of, by (trace, prompt, layer) as in a unit: those with an
  /// output projection of which all query heads are replayed.
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> error_layers;
  Index heads_at_once = 1;  ///< on a device: heads whose jobs run together, at most

  /// evaluate: the caches that take the place of methods; else null.
  std::shared_ptr<const GivenCaches> caches;

  /// Lines for the terminal: which methods `--algorithm all` leaves out, and what a layer lacks;
  /// which layers OUT.layers.csv leaves out.
  std::vector<std::string> left_out;

  /// Variants as they run where they depend on the layer, by (trace, prompt, layer, variant);
  /// variant_of looks here first.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>, Variant> resolved;

  /// Job j runs entry j % entries on unit j / entries.
  Index jobs() const { return static_cast<Index>(units.size() * entries.size()); }
  const Unit& unit_of(Index job) const;
  const Entry& entry_of(Index job) const;
  /// What an entry runs on a unit, all parameters resolved.
  const Variant& variant_of(const Unit& unit, const Entry& entry) const;
  /// Whether OUT.layers.csv has lines of the unit's layer.
  bool makes_layer_error(const Unit& unit) const;
  /// Numbers of the units of one layer, which follow each other; `unit`: any of them.
  Range layer_units(Index unit) const;
  /// Those of every layer, in order.
  std::vector<Range> layers() const;
  /// Jobs of this shard: a contiguous part, so that a shard touches few units. No shard cuts a
  /// layer whose error is made.
  Range shard_jobs() const;
  /// Rows of the undivided file that the jobs make.
  Range row_range(Range job_range) const;
  bool stream() const { return options.protocol == "stream"; }
  const LayerMeta& layer_meta(const Unit& unit) const;
  const PromptMeta& prompt_meta(const Unit& unit) const;
  /// Hash of everything that decides which rows there are and what they hold; not of threads,
  /// shards or paths.
  std::string hash() const;
};

/// What methods are told of a unit's layer before its heads are read.
LayerFacts layer_facts(const Plan& plan, const Unit& unit);

/// What a variant's definition asks of the queries that score, and what the unit's trace holds.
/// Nothing where the variant scores with none.
std::optional<Variant::Queries> scoring_queries(const Plan& plan, const Unit& unit,
                                                const Variant& variant);

/// Lines for the terminal: which algorithms have fewer queries to score with than they ask for, and
/// on how many KV heads. Empty where all have what they ask for.
std::vector<std::string> scoring_notes(const Plan& plan);

/// Threads that a run is to have if memory suffices. On a device most of them wait for it.
int wanted_threads(const ReplayOptions& options);

/// Opens the traces and lists the jobs. Errors: InputError (bad option, a layer, head or prompt
/// that no trace has, a method without a size, two traces of one name, a stream of a layer whose
/// queries are not all stored, a method that is named and needs what a layer lacks), IoError
/// (device absent).
Plan make_plan(const ReplayOptions& options);

}  // namespace kvbench
