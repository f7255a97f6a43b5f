// The trace schema, version 1: names inside the file and what a reader learns from its structure.
// The format itself is described in docs/trace_format.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/extra.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Names and fixed values of the schema.
namespace schema {
inline constexpr std::string_view kFormat = "kvbench-trace";  ///< root attribute `format`
inline constexpr std::int64_t kVersion = 1;                   ///< root attribute `version`
inline constexpr std::string_view kRopePost = "post";         ///< q, k as the attention sees them
inline constexpr std::string_view kRopeNone = "none";         ///< the model rotates nothing
inline constexpr std::string_view kRopePre = "pre";           ///< refused
inline constexpr std::string_view kPrompts = "prompts";
inline constexpr std::string_view kLayers = "layers";
inline constexpr std::string_view kTokenIds = "token_ids";
inline constexpr const char* kMembers = "members";  ///< of a group: the names in it
inline constexpr const char* kDigest = "sha256";   ///< of a dataset, docs/trace_format.md#checksums
inline constexpr std::string_view kRope = "rope";  ///< group of rotary tables, optional
inline constexpr std::string_view kOProj = "o_proj";                ///< of a layer, optional
inline constexpr std::string_view kResidualNorm = "residual_norm";  ///< likewise
inline constexpr std::string_view kExtra = "extra";                 ///< likewise, a group of sets
inline constexpr std::string_view kScores = "scores";               ///< likewise, a group
inline constexpr Index kRopeAhead = 512;        ///< positions that they go beyond the prompt
inline constexpr Index kMaxChunkTokens = 1024;  ///< tokens of one head per chunk when written
}  // namespace schema

/// What every layer of a trace must hold.
enum class Require : std::uint8_t {
  all,   ///< q, k and v: what a replay needs
  keys,  ///< k alone; q and v may be absent (`kvbench cluster`, `kvbench info`)
};

/// The datasets of a layer.
enum class LayerTensor : std::uint8_t { queries, keys, values };

constexpr std::string_view name(LayerTensor what) {
  switch (what) {
    case LayerTensor::queries: return "queries";
    case LayerTensor::keys: return "keys";
    case LayerTensor::values: return "values";
  }
  return "?";
}

/// One layer of one prompt: shapes and attributes. All sizes are at least 1. Under Require::keys,
/// q_heads and nq are 0 without q, and dv is 0 without v.
struct LayerMeta {
  Index layer = 0;     ///< the layer's index in the model, >= 0
  Index q_heads = 0;   ///< query heads, a multiple of kv_heads; 0: no queries are stored
  Index kv_heads = 0;  ///< KV heads
  Index n = 0;         ///< tokens in the cache
  Index nq = 0;        ///< stored queries: those at positions n - nq .. n - 1; 1 <= nq <= n, or 0
  Index d = 0;         ///< width of queries and keys
  Index dv = 0;        ///< width of values; 0: no values are stored
  double scale = 1.0;  ///< s in exp(s<k,q>): of the layer, of the root, or 1/sqrt(d)
  std::optional<double> fisher;               ///< the layer's weight for Fisher-weighted methods
  std::vector<std::uint8_t> retrieval_heads;  ///< [kv_heads], non-zero = retrieval head; or empty
  std::vector<float> sink_logit;              ///< [q_heads], KvHead::sink_logit; or empty
  std::optional<Index> window;                ///< KvHead::window, >= 1; absent: a query sees all
  /// An earlier layer of the prompt with equal n, d, dv and kv_heads, whose keys and values these
  /// are, and which counts their bytes; absent: the layer has a cache of its own.
  std::optional<Index> shares_cache_of;
  Index rope_positions = 0;        ///< rows of the rotary tables, >= n + 512; 0: the layer has none
  Index rope_dim = 0;              ///< channels that turn: 2 .. d, even; 0: the layer has no tables
  Index hidden = 0;                ///< rows of the output projection; 0: the layer has none
  bool has_residual_norm = false;  ///< norms of the residual stream, [nq]
  std::string rope_path;           ///< where the tables are in the file; empty: the layer has none
  std::vector<ExtraSetInfo> extra;  ///< sets of further queries, by name; none without q
  std::vector<ScoresInfo> scores;   ///< another program's scores of the tokens, by name

  Index group() const { return q_heads / kv_heads; }  ///< query heads per KV head
  bool has(LayerTensor what) const {
    return what == LayerTensor::keys || (what == LayerTensor::queries ? q_heads : dv) > 0;
  }
};

/// One prompt.
struct PromptMeta {
  std::string id;                 ///< the group's name under /prompts
  Index n_tokens = 0;             ///< equals n of every layer
  std::string text_id;            ///< empty if absent
  bool has_token_ids = false;     ///< dataset token_ids, int32 [n_tokens]
  std::vector<LayerMeta> layers;  ///< ascending by layer; never empty
};

/// A trace without its values.
struct TraceMeta {
  std::string path;
  std::string model;    ///< model id and revision
  std::string source;   ///< data set
  std::string created;  ///< date
  std::string rope;     ///< "post" or "none"
  DType dtype = DType::float32;
  std::optional<double> scale;      ///< root attribute; what applies is LayerMeta::scale
  std::uint64_t file_bytes = 0;     ///< size of the file on disk
  std::vector<PromptMeta> prompts;  ///< numeric-aware name order (p2 before p10); never empty
};

/// The DType of that name.
std::optional<DType> parse_dtype(std::string_view text);

/// The index of a layer's group name: decimal digits without leading zeros, at most 1000000.
std::optional<Index> parse_layer_name(std::string_view text);

/// Total order of names in which runs of digits compare as numbers: p2 < p10. Names that differ
/// only in leading zeros compare by bytes.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace kvbench
