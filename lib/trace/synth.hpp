// Seeded traces with planted structure, so that a method's behaviour can be tied to one cause at a
// time: clusters, sinks, heavy hitters, a needle, locality, and the spread of value norms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/types.hpp"

namespace kvbench {

inline constexpr std::string_view kSynthModel = "kvbench synth";  ///< root attribute `model`

/// What to plant. Strengths are in nats: what a planted cause adds to the logit s<k,q> of the
/// queries and keys that it concerns. 0 disables a cause.
///
/// A key is a point near its token's cluster centre, plus planted components along directions that
/// are orthogonal to each other and to the cluster points, so that strengths add up (up to rounding
/// to `dtype`). One set of directions per (prompt, layer, KV head).
struct SynthOptions {
  std::uint64_t seed = 0;  ///< Every draw depends on it, prompt, layer, head and purpose.

  Index prompts = 1;   ///< Range 1..10000. Named p0, p1, ...
  Index layers = 2;    ///< Range 1..1000. Independent of each other.
  Index q_heads = 4;   ///< Range 1..1024, a multiple of kv_heads.
  Index kv_heads = 2;  ///< Range 1..1024.
  Index n = 2048;      ///< Tokens. Range 1..16777216.
  Index nq = 0;        ///< Queries kept, the last ones. Range 0..n; 0 means n.
  Index d = 64;        ///< Width of keys and queries. Range 16..1024, to have room for plants.
  Index dv = 64;       ///< Width of values. Range 1..1024.
  DType dtype = DType::float16;  ///< Element type stored. Narrower rounds plants more coarsely.
  std::optional<double> scale;   ///< s. Range > 0; absent means 1/sqrt(d). Stored at the root.
  int gzip_level = 4;            ///< Range 0..9; 0 stores without filters. Larger is smaller.
  std::string created;           ///< Root attribute `created`, free text, default empty.

  // --- keys
  double key_norm = 10;  ///< Norm of cluster centres. Range > 0. Larger keys round more coarsely.
  Index clusters = 16;   ///< Cluster centres, random directions. Range 1..65536. One makes all keys
                         ///< alike.
  double cluster_radius = 0.3;  ///< Expected distance of a key from its centre over key_norm. Range
                                ///< 0..100. Larger blurs clusters; 0 makes their keys equal.
  double run_length = 32;  ///< Mean tokens in a row in one cluster (geometric). Range >= 1. Larger
                           ///< makes topics longer; 1 draws each token anew.
  double key_offset = 0;   ///< Norm of one vector added to all keys. Range 0..10000. It moves keys
                           ///< off the origin and leaves softmax as it is.

  // --- what queries attend to
  double query_noise = 1;     ///< Standard deviation of the logits that unplanned attention has, in
                              ///< nats. Range 0..100. Larger makes attention peakier at random.
  double topic_strength = 2;  ///< Logit of keys at the centre of the query's own cluster. Range
                              ///< 0..100. Larger ties queries to topics.
  double recency = 3;         ///< Logit of the query's own position, falling off as a Gaussian with
                              ///< distance. Range 0..100. Larger makes heads local.
  double recency_window = 64;  ///< Standard deviation of that Gaussian, in tokens. Range > 0. With
                               ///< few spare widths (d < 64) the fall-off is noisier.

  // --- tokens that stand out
  Index sinks = 4;           ///< Leading tokens that attract attention. Range 0..n.
  double sink_strength = 6;  ///< Logit of a sink for every query. Range 0..100.
  double sink_norm = 0.5;    ///< Norm of a sink's key over key_norm. Range > 0, at most 100.
  double sink_value = 0.05;  ///< Norm of a sink's value over what it would be otherwise. Range
                             ///< 0..100. Small: much attention that moves the output little.
  double heavy_fraction =
      0.02;  ///< Fraction of tokens, at random, that are heavy hitters. Range 0..1.
  double heavy_strength = 4;   ///< Logit of a heavy hitter: alignment with the mean query. Range
                               ///< 0..100.
  double needle_strength = 0;  ///< Logit of the needle for the last queries. Range 0..100. Earlier
                               ///< queries do not see it: accumulated attention misses it.
  double needle_position = 0.5;  ///< Where the needle is, token floor(needle_position * n). Range
                                 ///< 0..1 without 1.
  Index needle_queries = 32;     ///< How many last queries attend to it. Range 1..n when it is on.

  // --- values
  double value_norm = 2;     ///< Median norm of values. Range > 0.
  double value_decades = 0;  ///< Value norms are log-uniform over so many powers of ten around
                             ///< value_norm. Range 0..8; wide ones need more than float16.
};

/// Throws InputError that names the option, the range and the value.
void check(const SynthOptions& options);

/// Writes a trace to `path`. The same options give byte-identical files from the same build; other
/// compilers or C libraries may differ in last bits. Holds one head at a time. Throws InputError
/// for options out of range or values beyond `dtype`, IoError if writing fails.
void synth(const SynthOptions& options, const std::string& path);

}  // namespace kvbench
