// The interface of a method: what it is given (task.hpp), what it returns (compressed.hpp,
// reads.hpp) and what it declares. Each method has one stem in algorithms/methods and one line in
// methods.inc (docs/extending.md).
#pragma once

#include "algorithms/params.hpp"
#include "algorithms/reads.hpp"
#include "algorithms/task.hpp"
#include "core/compressed.hpp"

namespace kvbench {

/// What a method does with tokens over the budget; `--algorithm @NAME` selects a family.
enum class Family {
  reference,     ///< bounds, not usable caches: all tokens, or sees the evaluated queries
  eviction,      ///< keeps some tokens unchanged, drops the others
  sampling,      ///< keeps some tokens with weights that stand for the dropped ones
  merging,       ///< entries made of several tokens: merged, averaged, fitted, sketched
  quantization,  ///< keeps all tokens in fewer bits
  retrieval      ///< keeps all tokens, of which each query reads some
};

constexpr std::string_view name(Family f) {
  switch (f) {
    case Family::reference: return "reference";
    case Family::eviction: return "eviction";
    case Family::sampling: return "sampling";
    case Family::merging: return "merging";
    case Family::quantization: return "quantization";
    case Family::retrieval: return "retrieval";
  }
  return "";
}

/// What a method holds of the tokens to compress. The first two can select tokens for other
/// methods; up to `placed`, what is held can be restricted to a layer's window.
enum class Holds {
  tokens,           ///< tokens of weight 1; can lead an A+B
  weighted_tokens,  ///< tokens of the trace, with weights
  placed,           ///< entries that it makes have MadeTokens::positions
  some_placed,      ///< some of them, or by parameters
  unplaced          ///< none of them
};

/// Heads that share one budget: one, all KV heads of a layer, or those of all replayed layers. The
/// replay passes their surveys to `share` and compresses each head with its Share.
enum class Scope { head, layer, layers };

/// How a method scores tokens with queries.
struct Scoring {
  std::optional<Index> last = {};  ///< only so many of the last positions; none: all from 0
  bool middle = false;             ///< only queries at positions to compress (a streamed middle)
  /// Sets of extra queries (`extra/<name>` of the layer) read in place of the prompt's own, and
  /// scores of other programs (`scores/<name>`). `resolve` must reject a layer without them.
  std::vector<std::string> sets = {};
  std::vector<std::string> stored = {};
};

/// Bytes that a method holds beside keys and values.
struct WeightBytes {
  Index each = 0;  ///< per token kept or made
  Index once = 0;
};

/// What a job reads and shares, by its parameters.
struct JobFacts {
  std::vector<Scoring> scoring = {};  ///< empty: reads no queries, `--scores` does not matter
  bool evaluated = false;             ///< sees the evaluated queries: `oracle*` only
  bool rope = false;                  ///< reads the trace's rotary tables
  bool o_proj = false;                ///< reads the trace's output projection
  bool random = false;                ///< draws random numbers; otherwise it has one row, seed 0
  Scope scope = Scope::head;          ///< heads that share one budget
  WeightBytes weights = {};           ///< beside keys and values, for A@Q
  bool own_denominator = false;       ///< a set of its own, which A@Q does not support
  std::string draws_as = {};          ///< the method whose random numbers it uses; "": its own

  bool sees_queries() const { return evaluated || !scoring.empty(); }
};

/// What `kvbench list` prints and what the replay must know before a run.
struct MethodInfo {
  std::string name;              ///< the word in CLI, CSV and file name
  std::optional<Family> family;  ///< required
  std::string summary;
  std::string source;      ///< paper, section
  std::string departures;  ///< from the source; empty: none
  std::vector<ParamSpec> params;
  /// Parameters that each replace a budget. Empty: the method has one size (`exact`), and runs once
  /// whatever the budgets are, or, with `must_fit`, once for each budget, in which it must fit.
  std::vector<std::string> sizes = {"tokens", "T"};
  bool must_fit = false;
  bool joint_sizes = false;  ///< sizes may be combined; `facts` decides
  /// Settings for tuning, as after `--algorithm NAME:`; `NAME:grid` adds the default and the
  /// authors' setting.
  std::vector<std::string> grid;
  /// The setting of the source's experiments (`NAME:authors`). Empty: the default.
  std::string authors;
  Holds holds = Holds::some_placed;
  /// Why it cannot be the A of an A@Q ("shares no tokens"). Empty: it can.
  std::string not_quantizable;
  bool fits_to_keys = false;  ///< uses Task::code_keys
  /// Most memory of a job, in copies of the head's keys and values in float32. --memory-limit plans
  /// threads with it.
  double copies = 0.5;
  /// Bytes of a matrix beside that, of tokens by tokens or queries, to keep `kept` tokens.
  /// Null: none.
  Index (*matrix_bytes)(const Params&, const LayerFacts&, Index kept) = nullptr;
  /// Throws InputError if parameters, each in range, do not fit each other or the method.
  std::function<JobFacts(const Params&)> facts = [](const Params&) { return JobFacts{}; };
  JobFacts usual_facts() const { return facts(Params(name, params, {})); }
  /// Returns values in place of `auto`, from the trace. Throws InputError if the layer lacks what
  /// the parameters need. Null: none.
  std::map<std::string, std::string> (*resolve)(const Params&, const LayerFacts&) = nullptr;
};

/// One head's input to `share`. The method fills the first two fields, and budget_bytes if it is
/// not the task's; the replay fills the others.
struct Survey {
  Index tokens = 0;               ///< tokens that it could keep on its own
  std::vector<double> data = {};  ///< the method's own
  Index layer = 0;
  Index kv_head = 0;
  Index middle = 0;                        ///< tokens to compress
  Index pair_bytes = 0;                    ///< bytes of one (k,v) pair
  std::optional<Index> budget_bytes = {};  ///< the head's; none: native parameters
  EntryShape shape = {};

  Index bytes() const { return budget_bytes.value_or(tokens * pair_bytes); }
};

/// A cache updated token by token, by one thread.
class StreamCache {
 public:
  virtual ~StreamCache() = default;

  /// Position j has arrived (rows j of the head). The recent window is now [max(0, j + 1 - recent),
  /// j]. `leaving` is the position that just left it, to be kept or dropped, or -1 (none, or a
  /// sink); with recent = 0, j itself unless it is a sink.
  virtual void append(Index j, Index leaving) = 0;

  /// What the cache holds beside the recent window.
  virtual Compressed view() const = 0;
};

/// The Q of A@Q: stores what another method holds. Pure functions. `facts` and `resolve` of the
/// method are called with these parameters too.
struct Quantizer {
  /// Parameters after `@`: the format only (default: 4 bits).
  std::vector<ParamSpec> params;
  /// Bytes of `count` entries, codes and scales; nondecreasing in `count`, 0 for none.
  Index (*bytes)(const EntryShape&, Index count, const Params&) = nullptr;
  /// Codes at least one entry. May use task.rng and task.scores, but no tokens other than the
  /// entries. Codes of keys must not depend on values.
  CodedEntries (*code)(const Task&, const KeptEntries&, const Params&) = nullptr;
  /// Whether keys are un-rotated, which needs positions. Null: no.
  bool (*needs_positions)(const Params&) = nullptr;
};

struct Method;

/// A method that a composition is made of.
struct Component {
  const Method* method;
  std::string prefix;  ///< of its parameters' names; "": they are the whole's
  Params (*params)(const Method&, const Params& whole);
};

/// A method. Runs under `prefill` if `compress` is set, under `stream` if `open_stream` is, under
/// `retrieval` if `open_reads` is; a scope wider than a head requires `survey` and `share`.
/// `compress` is a pure function, called from many threads, and throws Infeasible if the budget is
/// below its smallest size.
struct Method {
  MethodInfo info;
  std::function<Compressed(const Task&, const Params&)> compress = nullptr;
  std::unique_ptr<StreamCache> (*open_stream)(const StreamTask&, const Params&) = nullptr;
  /// What `share` needs of a head.
  std::function<Survey(const Task&, const Params&)> survey = nullptr;
  /// Returns one Share per survey, in order (by layer, then KV head). Their bytes must fit the sum
  /// of the surveys'.
  std::function<std::vector<Share>(std::span<const Survey>, const Params&)> share = nullptr;
  std::function<std::unique_ptr<ReadIndex>(const Task&, const Params&)> open_reads = nullptr;
  std::optional<Quantizer> quantizer = {};  ///< set if it can be the Q of an A@Q
  char joint = 0;                           ///< '+' or '@': a composition
  std::vector<Component> components = {};   ///< of a composition: A and B, or A and Q
};

template <class Cache>
std::unique_ptr<StreamCache> open_as(const StreamTask& task, const Params& params) {
  return std::make_unique<Cache>(task, params);
}
template <class Opened>
std::unique_ptr<ReadIndex> open_reads_as(const Task& task, const Params& params) {
  return std::make_unique<Opened>(task, params);
}

}  // namespace kvbench
