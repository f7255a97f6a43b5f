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

  Index prompts = 1;
  Index layers = 2;  ///< Independent of each other.
  Index q_heads = 4;
  Index kv_heads = 2;
  Index n = 2048;
  Index nq = 0;
  Index d = 64;  ///< At least 16, to have room for plants.
  Index dv = 64;
  std::optional<double> scale;   ///< Stored at the root.
  int gzip_level = 4;            ///< 0 stores without filters. Larger is smaller.
  DType dtype = DType::float16;  ///< Element type stored. Narrower rounds plants more coarsely.
  std::string created;           ///< Root attribute `created`, free text.

  // --- keys
  double key_norm = 10;         ///< Larger keys round more coarsely.
  double key_offset = 0;        ///< Moves keys off the origin and leaves softmax as it is.
  Index clusters = 16;          ///< Random directions. One makes all keys alike.
  double cluster_radius = 0.3;  ///< Larger blurs clusters; 0 makes their keys equal.
  double run_length = 32;       ///< Geometric. Larger makes topics longer; 1 draws each token anew.

  // --- what queries attend to
  double query_noise = 1;      ///< Larger makes attention peakier at random.
  double topic_strength = 2;   ///< For keys at the centre. Larger ties queries to topics.
  double recency = 3;          ///< Falls off as a Gaussian with distance. Larger: local heads.
  double recency_window = 64;  ///< With few spare widths (d < 64) the fall-off is noisier.

  // --- tokens that stand out
  Index sinks = 4;
  double sink_strength = 6;
  double sink_norm = 0.5;
  double sink_value = 0.05;      ///< Small: much attention that moves the output little.
  double heavy_fraction = 0.02;  ///< At random.
  double heavy_strength = 4;     ///< Alignment with the mean query.
  double needle_strength = 0;  ///< Earlier queries do not see it: accumulated attention misses it.
  double needle_position = 0.5;  ///< Token floor(needle_position * n).
  Index needle_queries = 32;

  // --- values
  double value_norm = 2;
  double value_decades = 0;  ///< Log-uniform around value_norm; wide ones need more than float16.
};

/// Numbers from `low` to `high`, without those that are open.
struct SynthRange {
  double low = 0;
  double high = 0;
  bool open_low = false;
  bool open_high = false;
};

/// Visits the shape of a trace: visit(name, member, SynthRange, help).
template <class Options, class Visit>
void each_shape(Options& o, const Visit& visit) {
  const auto n = static_cast<double>(o.n);
  visit("prompts", o.prompts, {1, 1e4}, "Number of prompts, named p0, p1, ...");
  visit("layers", o.layers, {1, 1e3}, "Layers per prompt");
  visit("q_heads", o.q_heads, {1, 1024}, "Query heads per layer, a multiple of --kv-heads");
  visit("kv_heads", o.kv_heads, {1, 1024}, "KV heads per layer");
  visit("n", o.n, {1, 0x1p24}, "Tokens per prompt");
  visit("nq", o.nq, {0, n}, "Number of last queries to store; 0 stores all");
  visit("d", o.d, {16, 1024}, "Width of queries and keys, 16 to 1024");
  visit("dv", o.dv, {1, 1024}, "Width of values");
  visit("scale", o.scale, {0, 1e6, true}, "Scale s of the logits s<k,q> [default: 1/sqrt(d)]");
  visit("gzip_level", o.gzip_level, {0, 9}, "gzip level, 1 to 9; 0 disables compression");
}

/// Visits what is planted, likewise.
template <class Options, class Visit>
void each_plant(Options& o, const Visit& visit) {
  const auto n = static_cast<double>(o.n);
  visit("key_norm", o.key_norm, {0, 1e6, true}, "Norm of cluster centres");
  visit("key_offset", o.key_offset, {0, 1e4}, "Norm of a vector added to every key");
  visit("clusters", o.clusters, {1, 65536}, "Number of key clusters");
  visit("cluster_radius", o.cluster_radius, {0, 100},
        "Distance of keys from their centre, relative to --key-norm");
  visit("run_length", o.run_length, {1, 1e9}, "Mean number of consecutive tokens in one cluster");
  visit("query_noise", o.query_noise, {0, 100}, "Standard deviation of random logits, in nats");
  visit("topic_strength", o.topic_strength, {0, 100},
        "Strength of keys in the query's own cluster");
  visit("recency", o.recency, {0, 100}, "Strength of the query's own position");
  visit("recency_window", o.recency_window, {0, 1e9, true},
        "Standard deviation of the recency Gaussian, in tokens");
  visit("sinks", o.sinks, {0, n}, "Number of leading tokens that are attention sinks");
  visit("sink_strength", o.sink_strength, {0, 100}, "Strength of a sink for every query");
  visit("sink_norm", o.sink_norm, {0, 100, true}, "Norm of sink keys, relative to --key-norm");
  visit("sink_value", o.sink_value, {0, 100}, "Norm of sink values, relative to other values");
  visit("heavy_fraction", o.heavy_fraction, {0, 1}, "Fraction of tokens that are heavy hitters");
  visit("heavy_strength", o.heavy_strength, {0, 100}, "Strength of a heavy hitter for every query");
  visit("needle_strength", o.needle_strength, {0, 100},
        "Strength of the needle for the last queries");
  visit("needle_position", o.needle_position, {0, 1, false, true},
        "Relative position of the needle, from 0 to below 1");
  // Of no effect without a needle.
  visit("needle_queries", o.needle_queries,
        o.needle_strength > 0 ? SynthRange{1, n} : SynthRange{-0x1p63, 0x1p63},
        "Number of last queries that attend to the needle");
  visit("value_norm", o.value_norm, {0, 1e6, true}, "Median norm of values");
  visit("value_decades", o.value_decades, {0, 8}, "Spread of value norms, in powers of ten");
}

/// Throws InputError that names the option, the range and the value.
void check(const SynthOptions& options);

/// Writes a trace to `path`. The same options give byte-identical files from the same build; other
/// compilers or C libraries may differ in last bits. Holds one head at a time. Throws InputError
/// for options out of range or values beyond `dtype`, IoError if writing fails.
void synth(const SynthOptions& options, const std::string& path);

}  // namespace kvbench
