// What a method is given: a head, a stream, a layer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/backend.hpp"
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
  /// Positions to compress, strictly ascending, may be empty. All others stay uncompressed.
  std::span<const Index> tokens;
  /// Bytes for `tokens`, all storage counted; none: native parameters set the size.
  std::optional<Index> budget_bytes;
  Range scoring = {};  ///< positions of the queries that a method may score with
  /// True attention mass [n] from the evaluated queries, mean over the group's query heads.
  /// Filled only for methods that see them (JobFacts::evaluated).
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
  /// Positions of the evaluated queries, from the prompt's end on. Only methods that see them
  /// (JobFacts::evaluated) and those of the retrieval protocol, where budget_bytes bounds what a
  /// query reads, may read these queries.
  Range evaluated = {};
  /// [hidden, group dv]: the columns of the layer's output projection for this KV head's query
  /// heads, in order, or null if the trace has none.
  const Matrix* o_proj = nullptr;
  /// Encodes kept keys; null unless the method is to fit to stored keys.
  const CodeKeys* code_keys = nullptr;
  /// Retrieval: bytes of a token of the middle as it is held; none: those of a (k,v) pair.
  std::optional<Index> bytes_per_token = {};
  /// Contain at least what the parameters ask for (JobFacts::scoring).
  std::span<const ExtraSet> extra = {};
  std::span<const NamedScores> named_scores = {};

  Index count() const { return static_cast<Index>(tokens.size()); }
  /// Bytes that a query of the retrieval protocol reads for a token.
  Index read_bytes() const { return bytes_per_token.value_or(head.pair_bytes()); }
};

/// One stream: positions 0 .. n-1 of one KV head arrive in order.
struct StreamTask {
  /// nq == n. What a method uses of positions past the current one is among its departures.
  const KvHead& head;
  Index recent = 0;  ///< last tokens kept exact outside the budget
  /// Bytes at any time, beside the recent window; none: native parameters set the size.
  std::optional<Index> budget_bytes;
  Rng rng;
  const Backend& backend = cpu_backend();
  /// Tokens [0, sink) stay exact outside the budget and in every softmax; the method does not hold,
  /// score or count them.
  Index sink = 0;
};

/// A layer before any of its heads is read.
struct LayerFacts {
  Index n = 0;   ///< tokens
  Index d = 0;   ///< head_dim of queries and keys
  Index dv = 0;  ///< head_dim of values
  bool stream = false;
  Range scoring = {};  ///< positions of the queries that a method may score with
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

}  // namespace kvbench
