// What a method is. Each has one stem in algorithms/methods and one line in methods.inc
// (docs/extending.md).
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
#include "attention/scores.hpp"
#include "core/extra.hpp"
#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

struct Compressed;
struct RopeTables;

/// What a head is given of a size that several heads share (Scope::layer, Scope::layers).
struct Share {
  Index tokens = 0;  ///< how many of its tokens the head may keep
  /// What else the method hands over, one object for all heads (common scores, say); null: nothing.
  std::shared_ptr<const std::vector<double>> values = nullptr;
  /// Bytes that the head may hold; none: those of `tokens` pairs.
  std::optional<Index> bytes = {};
};

/// Keys [c, d] of the tokens at `positions` as a quantizer stores them, for methods that fit
/// weights and values to stored keys (A@Q with fit=after).
using CodeKeys = std::function<Matrix(const Matrix& keys, std::span<const Index> positions)>;

/// What one job asks of a method: compress these tokens of one KV head.
struct Task {
  const KvHead& head;
  /// Positions to compress, strictly ascending: the middle under `prefill`, or what another method
  /// left of it. May be empty. All others stay uncompressed and are none of the method's business.
  std::span<const Index> tokens;
  /// Bytes that the method may hold for `tokens`, everything counted; none: native parameters say.
  std::optional<Index> budget_bytes;
  Range scoring;  ///< positions of the queries that a method may score with
  /// True attention mass [n] from the evaluated queries, mean over the group's query heads.
  /// Filled only for methods whose info says `sees_evaluated`.
  std::span<const double> true_mass;
  Rng rng;
  const ScoreBook* scores = nullptr;  ///< of this head, computed once for all jobs
  const Share* share = nullptr;       ///< the head's, where the scope is wider than a head
  /// The layer's attribute of that name [kv_heads], or empty.
  std::span<const std::uint8_t> retrieval_heads = {};
  Index kv_head = 0;
  std::optional<double> fisher = {};       ///< the layer's, where the trace carries it
  const Backend& backend = cpu_backend();  ///< where heavy arithmetic on the head runs
  /// Tokens [0, sink) are the protocol's: exact, in every softmax that sees them, never in
  /// `tokens`.
  Index sink = 0;
  const RopeTables* rope = nullptr;  ///< the layer's, where the trace carries them; else null
  Range evaluated = {};              ///< positions of the evaluated queries; like true_mass
  /// [hidden, group dv]: the layer's output projection, the columns of this KV head's query heads
  /// in order, where the trace carries it; else null.
  const Matrix* o_proj = nullptr;
  /// What another program made of these tokens (`kvbench evaluate`); else null.
  const Compressed* given = nullptr;
  /// How the keys that the method keeps will be stored, where it is to fit to them; else null.
  const CodeKeys* code_keys = nullptr;
  /// Of the head: at least the sets of extra queries and the scores that the parameters ask for
  /// (MethodInfo::extra_sets, named_scores).
  std::span<const ExtraSet> extra = {};
  std::span<const NamedScores> named_scores = {};

  Index count() const { return static_cast<Index>(tokens.size()); }
};

/// Tokens of the trace that are held as they are: entry i is position tokens[i] with weight
/// weights[i], or `common` where weights is empty.
struct HeldTokens {
  std::vector<Index> tokens;   ///< strictly ascending, a subset of the task's
  std::vector<float> weights;  ///< empty or one per token, each in [0, inf)
  float common = 1.0F;

  float weight(std::size_t i) const { return weights.empty() ? common : weights[i]; }
};

/// Entries that are in no trace: merged, averaged, dequantised or estimated keys and values.
struct MadeTokens {
  Matrix k;                    ///< [c, d]
  Matrix v;                    ///< [c, dv]; empty in a denominator
  std::vector<float> weights;  ///< empty or [c]
  /// [c]: of the tokens whose rotation the keys have (of merged ones the kept one's); empty: the
  /// entries have no position of their own.
  std::vector<Index> positions = {};
};

/// The denominator's own set, for methods that do not share the numerator's.
struct Denominator {
  HeldTokens held;  ///< keys only
  MadeTokens made;  ///< keys only
  /// True where `held` repeats the numerator's tokens under other weights, so that no key is stored
  /// twice.
  bool same_keys = false;
};

/// Names and texts of figures, in the order of the `diag` column.
using Figures = std::vector<std::pair<std::string, std::string>>;

/// What a method leaves of the task's tokens.
struct Compressed {
  HeldTokens held;
  MadeTokens made;
  std::optional<Denominator> denominator;  ///< none: the numerator's set and weights
  /// Weights, indices, scores, counts: what the method must keep beside keys and values. Bytes.
  Index aux_bytes = 0;
  /// Bytes of keys and values where they are not held as rows of the trace's element type
  /// (sketches, codes); none: counted from `held`, `made` and `denominator`.
  std::optional<Index> payload_bytes;
  /// Bytes needed only while attending (a rebuilt cache). Not part of `bytes`.
  Index transient_bytes = 0;
  /// How many of `made` are tokens of the task under a format of fewer bits: tokens kept, though
  /// not held exactly.
  Index quantised = 0;
  /// Tokens of the task, ascending, that `mass_kept` and amnesia count as held although `made` has
  /// them in fewer bits: what A of an A@Q holds as it is. Not in `held`.
  std::vector<Index> counted = {};
  /// Why this is no fair instance of the method (a sketch of one cell, say), for the status
  /// `degenerate: ...`; empty: it is one. The row is measured all the same.
  std::string degenerate;
  Figures diag;  ///< the method's own; never used in a metric
};

/// Which heads share one budget: of the scope (every KV head of the layer; under `layers`, of every
/// replayed layer of the prompt) the replay surveys all, hands the surveys to `share`, and
/// compresses each head with its Share.
enum class Scope { head, layer, layers };

/// What decides the bytes of a head's entries.
struct EntryShape {
  Index d = 0;
  Index dv = 0;
  Index element_bytes = 2;

  Index pair_bytes() const { return (d + dv) * element_bytes; }
};

inline EntryShape shape_of(const KvHead& head) {
  return {head.d(), head.dv(), bytes_per_element(head.dtype)};
}

/// What one head tells those that it shares with. The method fills the first two, the replay the
/// others.
struct Survey {
  Index tokens = 0;                 ///< that it could keep by the budget if none were shared
  std::vector<double> values = {};  ///< the method's own
  Index layer = 0;
  Index kv_head = 0;
  Index middle = 0;        ///< tokens that the head has to compress
  Index pair_bytes = 0;    ///< bytes of one (k,v) pair
  Index budget_bytes = 0;  ///< the head's budget, or that of `tokens` pairs
  EntryShape shape = {};
  std::optional<Index> limit_bytes = {};  ///< the head's budget before a method took its part
};

/// What a stream asks of a method: live through positions 0 .. n-1 of one KV head.
struct StreamTask {
  const KvHead& head;  ///< nq == n; nothing behind the current position may be looked at
  Index recent = 0;    ///< the protocol keeps so many last tokens exact, outside the budget
  /// Bytes that the method may hold at any time, beside the recent window; none: native parameters.
  std::optional<Index> budget_bytes;
  Rng rng;
  const Backend& backend = cpu_backend();  ///< where heavy arithmetic on the head runs
  /// Tokens [0, sink) stay exact too, outside the method's budget: they are in every softmax, but
  /// the method holds, scores and counts none of them.
  Index sink = 0;
};

/// A cache that lives through a stream, used by one thread.
class StreamCache {
 public:
  virtual ~StreamCache() = default;

  /// Position j has arrived; its key, value and the group's queries are rows j of the head. The
  /// recent window is now [max(0, j + 1 - recent), j], still exact and paid by the protocol.
  /// `leaving` is the position that left it just now and is the method's to keep or drop, or -1
  /// (none, or a sink). With recent = 0 it is j itself, where j is no sink.
  virtual void append(Index j, Index leaving) = 0;

  /// What the cache holds beside the recent window, to attend with and to be weighed.
  virtual Compressed view() const = 0;
};

/// What is known of a layer before any of its heads is read.
struct LayerFacts {
  Index n = 0;   ///< tokens
  Index d = 0;   ///< head_dim of queries and keys
  Index dv = 0;  ///< head_dim of values
  bool stream = false;
  Range scoring;  ///< positions of the queries that a method may score with
  bool has_fisher = false;
  Index rope_positions = 0;  ///< rows of the rotary tables; 0: the trace carries none
  Index rope_dim = 0;
  Index hidden = 0;         ///< rows of the output projection; 0: the trace carries none
  Index group = 1;          ///< query heads to a KV head
  Index evaluated = 0;      ///< evaluated queries of a query head
  Index element_bytes = 4;  ///< of an element of KvHead::precision
  Index pair_bytes = 0;     ///< of one (k,v) pair
  Index sink = 0;           ///< tokens; at most n
  Index recent = 0;         ///< tokens of the recent window; at most n
  std::span<const ExtraSetInfo> extra = {};  ///< sets of extra queries that the trace carries
  std::span<const ScoresInfo> scores = {};   ///< scores of other programs, the same
  Index window = 0;                          ///< KvHead::window

  /// Tokens of the prompt: those before the evaluated queries.
  Index prompt() const { return n - evaluated; }
};

/// Bytes of `tokens` entries in MadeTokens.
inline Index made_bytes(const LayerFacts& layer, Index tokens) {
  return 4 * tokens * (layer.d + layer.dv + 1);
}

/// For MethodInfo::reads_rope and reads_o_proj.
inline bool always(const Params&) {
  return true;
}

/// For MethodInfo::scratch_bytes: nothing beside what every job needs.
inline Index no_scratch(const Params&, const LayerFacts&, Index /*middle*/, Index /*kept*/) {
  return 0;
}

/// What a method does with the tokens that it has no room for; `--algorithm @NAME` is all of one.
enum class Family {
  reference,    ///< bounds, no caches to use: all tokens, or a look at the evaluated queries
  eviction,     ///< some tokens stay as they are, the others are dropped
  sampling,     ///< some tokens stay under weights, and stand for those dropped
  merging,      ///< entries that are made of several tokens: merged, averaged, fitted, sketched
  quantization  ///< all tokens stay, in fewer bits
};

constexpr std::string_view name(Family f) {
  switch (f) {
    case Family::reference: return "reference";
    case Family::eviction: return "eviction";
    case Family::sampling: return "sampling";
    case Family::merging: return "merging";
    case Family::quantization: return "quantization";
  }
  return "";
}

/// Bytes that a method holds beside keys and values.
struct WeightBytes {
  Index each = 0;  ///< of every token that it keeps or makes
  Index once = 0;
};

/// What `kvbench list` prints and what the replay needs to know without running anything.
struct MethodInfo {
  std::string name;              ///< the word in CLI, CSV and file name
  std::optional<Family> family;  ///< every method states it
  std::string summary;
  std::string source;      ///< paper, section
  std::string departures;  ///< from the source; empty: none
  std::vector<ParamSpec> params;
  /// Parameters any of which fixes the size, so that no budget is needed. Empty: the method has one
  /// size only and takes no budget (`exact`).
  std::vector<std::string> sizes = {"tokens", "T"};
  bool joint_sizes = false;  ///< they may be given together; `check` says which
  /// What tuning tries, each entry as after the colon of `--algorithm NAME:`; `NAME:grid` is all of
  /// them, the default and the authors' setting. Empty: nothing to tune.
  std::vector<std::string> grid;
  /// The setting of the source's experiments, in the same form; `NAME:authors` stands for it.
  /// Empty: it is the default.
  std::string authors;
  bool keeps_tokens = false;  ///< holds tokens of weight 1 and nothing else: can lead an `A+B`
  /// Holds tokens of the trace and nothing else, but not all of weight 1: like one that
  /// keeps_tokens it can say which tokens another method keeps (can_select).
  bool selects_tokens = false;
  bool sees_evaluated = false;  ///< `oracle` and `oracle-matching` alone
  bool scores = false;          ///< uses queries to score tokens: `--scores` matters
  /// Where that depends on the parameters; null: it is `scores`. Never true where `scores` is not.
  bool (*scores_if)(const Params&) = nullptr;
  /// Whether it scores tokens with queries under these parameters.
  bool scores_with(const Params& given) const {
    return scores && (scores_if == nullptr || scores_if(given));
  }
  /// Whether it looks at no query with its defaults.
  bool agnostic() const { return !sees_evaluated && !scores_with(Params(name, params, {})); }
  /// Whether it uses the trace's rotary tables, where it has them. Null: no.
  bool (*reads_rope)(const Params&) = nullptr;
  /// The same of the layer's output projection.
  bool (*reads_o_proj)(const Params&) = nullptr;
  /// Sets of extra queries that it reads (`extra/<name>` of the trace's layer), in place of the
  /// prompt's own; `resolve` refuses a layer without them. Null: none.
  std::vector<std::string> (*extra_sets)(const Params&) = nullptr;
  /// The same of scores (`scores/<name>`); what they looked at is not known, so `scores` is set.
  std::vector<std::string> (*named_scores)(const Params&) = nullptr;
  /// Whether only queries at positions of the tokens to compress score (the middle is streamed).
  /// Null: all positions before the end of the prompt.
  bool (*middle_queries_only)(const Params&) = nullptr;
  /// How many of the last scoring queries the method's definition asks for; null: all that there
  /// are from position 0 on.
  Index (*query_window)(const Params&) = nullptr;
  /// Throws InputError where parameters that are each in range do not go together, or not with the
  /// method (an even pooling kernel, say). Null: nothing to check.
  void (*check)(const Params&) = nullptr;
  /// What depends on the trace: the values to replace (those that were `auto`). Throws InputError
  /// where the layer lacks what the parameters ask for. Null: nothing to resolve.
  std::map<std::string, std::string> (*resolve)(const Params&, const LayerFacts&) = nullptr;
  /// For --memory-limit: the bytes that a job holds at its peak beside the head and what every job
  /// needs (replay/job.cpp: lists of the tokens held, sums, a block of the estimate), where it
  /// compresses `middle` tokens to at most `kept`: scores that it asks for, copies, entries that it
  /// makes. Not below what it takes, and less than a tenth of a small run above
  /// (tests/test_memory.py). Each method says it; `no_scratch` for nothing.
  Index (*scratch_bytes)(const Params&, const LayerFacts&, Index middle, Index kept) = nullptr;
  /// For A@Q: what it holds beside keys and values; null: nothing.
  WeightBytes (*weight_bytes)(const Params&) = nullptr;
  /// Why it cannot be the A of an A@Q ("shares no tokens"); empty: it can.
  std::string unstorable;
  /// Whether its denominator is a set of its own, which no A@Q has. Null: no.
  bool (*own_denominator)(const Params&) = nullptr;
  bool fits_to_keys = false;  ///< heeds Task::code_keys
  bool has_positions = true;  ///< what it makes has MadeTokens::positions
  /// Though it does not just keep or select tokens, each entry stands at a position of the trace: a
  /// held token, or MadeTokens::positions.
  bool placed = false;
  /// Whether a query can attend to what it holds within a layer's window.
  bool fits_windows() const { return keeps_tokens || selects_tokens || placed; }
  /// Where the scope depends on the parameters; null: it is `scope`.
  Scope (*scope_of)(const Params&) = nullptr;
  Scope scope = Scope::head;  ///< which heads share one budget
  /// Whether a run with these parameters draws random numbers; if not, one row with seed 0.
  bool (*random)(const Params&) = [](const Params&) { return false; };
};

/// Keys and values that a quantizer codes: those that another method holds or made, in its order.
struct KeptEntries {
  Matrix k;                      ///< [c, d]
  Matrix v;                      ///< [c, dv]
  std::vector<Index> positions;  ///< as MadeTokens has them
};

/// Entries read back from their codes.
struct CodedEntries {
  Matrix k;               ///< [c, d]
  Matrix v;               ///< [c, dv]
  Index code_bytes = 0;   ///< payload
  Index scale_bytes = 0;  ///< aux: scales, norms, means, masks
  Figures diag;
};

/// How a method codes what another one holds (A@Q). Pure functions. `check`, `resolve`, `random`
/// and `query_window` of the method's info are asked with these parameters too.
struct Quantizer {
  /// Its parameters behind `@`, where the format is given and nothing else (defaults: 4 bits).
  std::vector<ParamSpec> params;
  /// Bytes of `count` entries, codes and scales; never falls with `count`; 0 for none.
  Index (*bytes)(const EntryShape&, Index count, const Params&) = nullptr;
  /// At least one entry. Takes random draws from task.rng, scoring queries from task.scores; no
  /// other tokens than the entries. Keys are coded alike whatever the values are.
  CodedEntries (*code)(const Task&, const KeptEntries&, const Params&) = nullptr;
  /// Whether keys are un-rotated, so that entries need positions. Null: no.
  bool (*needs_positions)(const Params&) = nullptr;
};

/// A method. `compress` is a pure function of its arguments, called from many threads at once.
/// It throws Infeasible where the budget is below the smallest size that it can have.
/// It runs under `prefill` if `compress` is set and under `stream` if `open_stream` is; one whose
/// scope is wider than a head sets `survey` and `share` too.
struct Method {
  MethodInfo info;
  Compressed (*compress)(const Task&, const Params&) = nullptr;
  std::unique_ptr<StreamCache> (*open_stream)(const StreamTask&, const Params&) = nullptr;
  Survey (*survey)(const Task&, const Params&) = nullptr;
  /// One Share per survey, in order; as pairs their tokens weigh at most the surveys' budgets
  /// together. Surveys come by layer, then KV head.
  std::vector<Share> (*share)(std::span<const Survey>, const Params&) = nullptr;
  std::optional<Quantizer> quantizer = {};  ///< set where it can be the Q of an A@Q
};

/// For Method::open_stream: a cache made of the task and the parameters.
template <class Cache>
std::unique_ptr<StreamCache> open_as(const StreamTask& task, const Params& params) {
  return std::make_unique<Cache>(task, params);
}

}  // namespace kvbench
