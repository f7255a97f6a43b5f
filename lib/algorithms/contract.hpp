// The interface of a method. Each method has one stem in algorithms/methods and one line in
// methods.inc (docs/extending.md).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/params.hpp"
#include "attention/backend.hpp"
#include "attention/read_lists.hpp"
#include "attention/scores.hpp"
#include "core/extra.hpp"
#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

struct Compressed;
struct RopeTables;

/// A head's part of a size that several heads share (Scope::layer, Scope::layers).
struct Share {
  Index tokens = 0;  ///< tokens that the head may keep
  /// The method's own data, common to all heads (scores, say), or null.
  std::shared_ptr<const std::vector<double>> data = nullptr;
  /// Bytes that the head may hold; none: those of `tokens` pairs.
  std::optional<Index> bytes = {};
};

/// Returns keys [c, d], at `positions`, as a quantizer stores them. For methods that fit weights
/// and values to stored keys (A@Q with fit=after).
using CodeKeys = std::function<Matrix(const Matrix& keys, std::span<const Index> positions)>;

/// One job: compress these tokens of one KV head.
struct Task {
  const KvHead& head;
  /// Positions to compress, strictly ascending, may be empty. All others stay uncompressed and are
  /// not visible to the method.
  std::span<const Index> tokens;
  /// Bytes for `tokens`, all storage counted; none: native parameters set the size.
  std::optional<Index> budget_bytes;
  Range scoring;  ///< positions of the queries that a method may score with
  /// True attention mass [n] from the evaluated queries, mean over the group's query heads.
  /// Filled only for methods whose info says `sees_evaluated`.
  std::span<const double> true_mass;
  Rng rng;
  const ScoreBook* scores = nullptr;  ///< of this head, computed once for all jobs
  /// Whether `tokens` are those of every job of the head, so that what depends on them can be kept
  /// in `scores`. Not those that A of an A+B leaves.
  bool whole = true;
  const Share* share = nullptr;  ///< set if the scope is wider than a head
  /// The layer's attribute of that name [kv_heads], or empty.
  std::span<const std::uint8_t> retrieval_heads = {};
  Index kv_head = 0;
  std::optional<double> fisher = {};  ///< the layer's, if the trace has it
  const Backend& backend = cpu_backend();
  /// Tokens [0, sink) stay exact and are never in `tokens`, but in every softmax that sees them.
  Index sink = 0;
  const RopeTables* rope = nullptr;  ///< the layer's, or null if the trace has none
  /// Positions of the evaluated queries; filled like true_mass, and for every task of the
  /// retrieval protocol, whose budget_bytes bounds what a query reads.
  Range evaluated = {};
  /// [hidden, group dv]: the columns of the layer's output projection for this KV head's query
  /// heads, in order, or null if the trace has none.
  const Matrix* o_proj = nullptr;
  /// The cache made by another program (`kvbench evaluate`), or null.
  const Compressed* external = nullptr;
  /// Encodes kept keys; null unless the method is to fit to stored keys.
  const CodeKeys* code_keys = nullptr;
  /// Retrieval: bytes of a token of the middle as it is held; none: those of a (k,v) pair.
  std::optional<Index> bytes_per_token = {};
  /// Contain at least what the parameters ask for (MethodInfo::extra_sets, named_scores).
  std::span<const ExtraSet> extra = {};
  std::span<const NamedScores> named_scores = {};

  Index count() const { return static_cast<Index>(tokens.size()); }
  /// Bytes that a query of the retrieval protocol reads for a token.
  Index read_bytes() const { return bytes_per_token.value_or(head.pair_bytes()); }
};

/// Tokens kept as they are: token tokens[i] has weight weights[i], or `common` if weights is empty.
struct HeldTokens {
  std::vector<Index> tokens;   ///< strictly ascending, a subset of the task's
  std::vector<float> weights;  ///< empty or one per token, each in [0, inf)
  float common = 1.0F;

  float weight(std::size_t i) const { return weights.empty() ? common : weights[i]; }
};

/// Entries that the method made: merged, averaged, dequantized or estimated keys and values.
struct MadeTokens {
  Matrix k;                    ///< [c, d]
  Matrix v;                    ///< [c, dv]; empty in a denominator
  std::vector<float> weights;  ///< empty or [c]
  /// [c]: the positions whose rotation the keys have (of merged tokens, the kept one's); empty:
  /// entries have no position.
  std::vector<Index> positions = {};
};

/// The denominator's own set, if it is not the numerator's.
struct Denominator {
  HeldTokens held;  ///< keys only
  MadeTokens made;  ///< keys only
  /// `held` repeats the numerator's tokens with other weights, so no key is stored twice.
  bool same_keys = false;
};

/// Figures of the `diag` column, in order.
using Figures = std::vector<std::pair<std::string, std::string>>;

/// What a method keeps of the task's tokens.
struct Compressed {
  HeldTokens held;
  MadeTokens made;
  std::optional<Denominator> denominator;  ///< none: the numerator's set and weights
  /// Bytes of weights, indices, scores and counts, stored beside keys and values.
  Index aux_bytes = 0;
  /// Bytes of keys and values if not stored as rows of the trace's element type (sketches, codes);
  /// none: counted from `held`, `made` and `denominator`.
  std::optional<Index> payload_bytes;
  /// Bytes needed only while attending (a rebuilt cache). Not part of `bytes`.
  Index transient_bytes = 0;
  /// Entries of `made` that are tokens of the task in fewer bits: kept, but not exactly.
  Index quantized = 0;
  /// Tokens of the task, ascending, that count as held in `mass_kept` and amnesia although `made`
  /// has them in fewer bits: what A of an A@Q holds. Not in `held`.
  std::vector<Index> counted = {};
  /// Reason for the status `degenerate: ...` (a sketch of one cell, say). Empty: a fair instance.
  /// The row is measured in either case.
  std::string degenerate;
  Figures diag;  ///< the method's own; never used in a metric
};

/// Heads that share one budget: one, all KV heads of a layer, or those of all replayed layers. The
/// replay passes their surveys to `share` and compresses each head with its Share.
enum class Scope { head, layer, layers };

/// What the bytes of an entry depend on.
struct EntryShape {
  Index d = 0;
  Index dv = 0;
  Index element_bytes = 2;

  Index pair_bytes() const { return (d + dv) * element_bytes; }
};

inline EntryShape shape_of(const KvHead& head) {
  return {head.d(), head.dv(), bytes_per_element(head.dtype)};
}

/// One head's input to `share`. The method fills the first two fields, the replay the others.
struct Survey {
  Index tokens = 0;               ///< tokens that it could keep on its own
  std::vector<double> data = {};  ///< the method's own
  Index layer = 0;
  Index kv_head = 0;
  Index middle = 0;        ///< tokens to compress
  Index pair_bytes = 0;    ///< bytes of one (k,v) pair
  Index budget_bytes = 0;  ///< the head's budget, or that of `tokens` pairs
  EntryShape shape = {};
  std::optional<Index> limit_bytes = {};  ///< the head's budget before a method takes its part
};

/// One stream: positions 0 .. n-1 of one KV head arrive in order.
struct StreamTask {
  const KvHead& head;  ///< nq == n; must not be read past the current position
  Index recent = 0;    ///< last tokens kept exact outside the budget
  /// Bytes at any time, beside the recent window; none: native parameters set the size.
  std::optional<Index> budget_bytes;
  Rng rng;
  const Backend& backend = cpu_backend();
  /// Tokens [0, sink) stay exact outside the budget and in every softmax; the method does not hold,
  /// score or count them.
  Index sink = 0;
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

/// A layer before any of its heads is read.
struct LayerFacts {
  Index n = 0;   ///< tokens
  Index d = 0;   ///< head_dim of queries and keys
  Index dv = 0;  ///< head_dim of values
  bool stream = false;
  Range scoring;  ///< positions of the queries that a method may score with
  bool has_fisher = false;
  Index rope_positions = 0;  ///< rows of the rotary tables; 0: none in the trace
  Index hidden = 0;          ///< rows of the output projection; 0: none in the trace
  Index group = 1;           ///< query heads per KV head
  Index evaluated = 0;       ///< evaluated queries per query head
  Index element_bytes = 4;   ///< of an element of KvHead::precision
  std::span<const ExtraSetInfo> extra = {};  ///< sets of extra queries in the trace
  std::span<const ScoresInfo> scores = {};   ///< scores of other programs in the trace
  Index window = 0;                          ///< KvHead::window

  /// Tokens before the evaluated queries.
  Index prompt() const { return n - evaluated; }
};

inline bool always(const Params&) {
  return true;
}

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

/// Bytes that a method holds beside keys and values.
struct WeightBytes {
  Index each = 0;  ///< per token kept or made
  Index once = 0;
};

enum class Positions { none, some, all };

/// What `kvbench list` prints and what the replay must know before a run.
struct MethodInfo {
  std::string name;              ///< the word in CLI, CSV and file name
  std::optional<Family> family;  ///< required
  std::string summary;
  std::string source;      ///< paper, section
  std::string departures;  ///< from the source; empty: none
  std::vector<ParamSpec> params;
  /// Parameters that each replace a budget. Empty: the method has one size (`exact`).
  std::vector<std::string> sizes = {"tokens", "T"};
  bool joint_sizes = false;  ///< sizes may be combined; `check` decides
  /// Settings for tuning, as after `--algorithm NAME:`; `NAME:grid` adds the default and the
  /// authors' setting.
  std::vector<std::string> grid;
  /// The setting of the source's experiments (`NAME:authors`). Empty: the default.
  std::string authors;
  bool keeps_tokens = false;  ///< holds tokens of weight 1 only; can lead an `A+B`
  /// Holds tokens of the trace only, with weights; like keeps_tokens, allows can_select.
  bool selects_tokens = false;
  bool sees_evaluated = false;  ///< `oracle` and `oracle-matching` only
  bool scores = false;          ///< scores tokens with queries, so `--scores` matters
  /// Refines `scores` by parameters; null: `scores`. Must be false if `scores` is.
  bool (*scores_if)(const Params&) = nullptr;
  bool scores_with(const Params& p) const {
    return scores && (scores_if == nullptr || scores_if(p));
  }
  /// Whether it reads no query with default parameters.
  bool agnostic() const { return !sees_evaluated && !scores_with(Params(name, params, {})); }
  /// Whether it uses the trace's rotary tables (output projection). Null: no.
  bool (*reads_rope)(const Params&) = nullptr;
  bool (*reads_o_proj)(const Params&) = nullptr;
  /// Sets of extra queries (`extra/<name>` of the layer) read in place of the prompt's own.
  /// `resolve` must reject a layer without them. Null: none.
  std::vector<std::string> (*extra_sets)(const Params&) = nullptr;
  /// The same for scores (`scores/<name>`). Requires `scores`, as their source is unknown.
  std::vector<std::string> (*named_scores)(const Params&) = nullptr;
  /// Whether only queries at positions to compress may score (a streamed middle). Null: all
  /// positions of the prompt.
  bool (*middle_queries_only)(const Params&) = nullptr;
  /// How many of the last scoring queries the method is defined on. Null: all from position 0.
  Index (*query_window)(const Params&) = nullptr;
  /// Throws InputError if parameters, each in range, do not fit each other or the method. Null: no
  /// check.
  void (*check)(const Params&) = nullptr;
  /// Returns values in place of `auto`, from the trace. Throws InputError if the layer lacks what
  /// the parameters need. Null: none.
  std::map<std::string, std::string> (*resolve)(const Params&, const LayerFacts&) = nullptr;
  /// Most memory of a job, in copies of the head's keys and values in float32. --memory-limit plans
  /// threads with it.
  double copies = 0.5;
  /// Bytes of a matrix beside that, of tokens by tokens or queries, to keep `kept` tokens.
  /// Null: none.
  Index (*matrix_bytes)(const Params&, const LayerFacts&, Index kept) = nullptr;
  /// For A@Q: bytes beside keys and values. Null: none.
  WeightBytes (*weight_bytes)(const Params&) = nullptr;
  /// Why it cannot be the A of an A@Q ("shares no tokens"). Empty: it can.
  std::string not_quantizable;
  /// Whether the denominator is a set of its own, which A@Q does not support. Null: no.
  bool (*own_denominator)(const Params&) = nullptr;
  bool fits_to_keys = false;  ///< uses Task::code_keys
  /// Which entries that it makes have MadeTokens::positions.
  Positions positions = Positions::some;
  /// Whether what it holds can be restricted to a layer's window.
  bool fits_windows() const {
    return keeps_tokens || selects_tokens || positions == Positions::all;
  }
  /// Null: `scope`.
  Scope (*scope_of)(const Params&) = nullptr;
  Scope scope = Scope::head;  ///< heads that share one budget
  /// The method whose random numbers, surveys and shares it uses (`static:A=NAME`). Null: its own.
  const Method& (*acts_as)(const Params&) = nullptr;
  /// Whether a run draws random numbers; otherwise it has one row, seed 0.
  bool (*random)(const Params&) = [](const Params&) { return false; };
};

/// Entries to quantize: what another method holds or made, in its order.
struct KeptEntries {
  Matrix k;                      ///< [c, d]
  Matrix v;                      ///< [c, dv]
  std::vector<Index> positions;  ///< as MadeTokens has them
};

/// Dequantized entries.
struct CodedEntries {
  Matrix k;               ///< [c, d]
  Matrix v;               ///< [c, dv]
  Index code_bytes = 0;   ///< payload
  Index scale_bytes = 0;  ///< aux: scales, norms, means, masks
  Figures diag;
};

/// What the evaluated queries read of a task's tokens under the retrieval protocol. A query reads
/// `fixed` and its own list in `lists`.
struct Reads {
  std::optional<Compressed> fixed = {};  ///< read by every query: what a prefill method holds
  ReadLists lists;                       ///< of tokens of the task
  /// Tokens that the query asked for before any union: [group * evaluated], by head, then query;
  /// none: those of `fixed`.
  std::vector<Index> asked = {};
  Index index_bytes = 0;  ///< held beside the cache; every query reads all of it
  /// R@Q: the task's tokens as they are held and read, in order; none: as in the trace. `fixed` is
  /// empty then.
  std::optional<CodedEntries> coded = {};
  std::string degenerate = {};
  Figures diag = {};
};

/// An index over a task's tokens. Building it is what `compress_ms` times; `search` is called once,
/// and its time counts as attending.
class ReadIndex {
 public:
  virtual ~ReadIndex() = default;
  /// Throws Infeasible if the queries cannot read as little as the task's budget.
  virtual Reads search() = 0;
};

/// The Q of A@Q: stores what another method holds. Pure functions. `check`, `resolve`, `random` and
/// `query_window` of the method's info are called with these parameters too.
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

/// A method. Runs under `prefill` if `compress` is set, under `stream` if `open_stream` is, under
/// `retrieval` if `open_reads` is; a scope wider than a head requires `survey` and `share`.
/// `compress` is a pure function, called from many threads, and throws Infeasible if the budget is
/// below its smallest size.
struct Method {
  MethodInfo info;
  Compressed (*compress)(const Task&, const Params&) = nullptr;
  std::unique_ptr<StreamCache> (*open_stream)(const StreamTask&, const Params&) = nullptr;
  Survey (*survey)(const Task&, const Params&) = nullptr;
  /// Returns one Share per survey, in order (by layer, then KV head). Their tokens, as pairs, must
  /// fit the sum of the surveys' budgets.
  std::vector<Share> (*share)(std::span<const Survey>, const Params&) = nullptr;
  std::optional<Quantizer> quantizer = {};  ///< set if it can be the Q of an A@Q
  std::unique_ptr<ReadIndex> (*open_reads)(const Task&, const Params&) = nullptr;
};

template <class Cache>
std::unique_ptr<StreamCache> open_as(const StreamTask& task, const Params& params) {
  return std::make_unique<Cache>(task, params);
}

}  // namespace kvbench
