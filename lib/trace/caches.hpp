// Caches files (docs/trace_format.md): the compressed middle of a prompt, one entry per method,
// setting and KV head. Written by `replay --export-caches` or another program; read by `evaluate`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// The denominator's own keys or weights.
struct CacheDenominator {
  std::optional<Matrix> k;        ///< [B2, d]; absent: the numerator's keys
  std::vector<float> log_weight;  ///< [B2], or [B] without k; empty: all 0
};

/// The compressed middle of one KV head, as attention sees it.
struct HeadCache {
  Matrix k;                         ///< [B, d]
  Matrix v;                         ///< [B, dv]
  std::vector<float> log_weight;    ///< [B]; empty: all 0
  std::vector<std::int32_t> token;  ///< [B], -1: made; empty: all made
  std::optional<CacheDenominator> denominator;
  std::optional<Index> aux_bytes;      ///< absent: those of the weights
  std::optional<Index> payload_bytes;  ///< absent: counted from the rows
  Index quantized = 0;                 ///< made entries that are tokens in fewer bits
  /// Positions, ascending, of quantized tokens that are counted as held exactly.
  std::vector<std::int32_t> counted;
  Index transient_bytes = 0;
  std::optional<double> compress_ms;
  std::optional<Index> scoring_queries;
  std::string infeasible;  ///< why the budget cannot be met; then only scoring_queries is set
  std::string failed;      ///< the method's error; likewise
  std::string degenerate;
  std::string diag;

  Index rows() const { return k.rows(); }
  /// Whether the method has no result for this head.
  bool absent() const { return !infeasible.empty() || !failed.empty(); }
};

/// One method with one setting.
struct CacheGroup {
  std::string name;  ///< of the HDF5 group
  std::string algorithm;
  std::string params;  ///< key=value;..., keys ascending
  std::optional<double> budget;
  std::uint64_t seed = 0;
  std::string scores = "past";  ///< past | all | none
  std::string scope = "head";   ///< head | layer | layers
};

/// Attributes of the root.
struct CachesMeta {
  std::vector<std::string> trace_sha256;
  std::string protocol = "prefill";
  Index sink = 0;
  Index recent = 0;
  Index queries = 0;
  std::string plan;  ///< hash of the run that wrote it; empty: by another program
};

/// The place of an entry in a group.
struct CachePlace {
  std::string prompt;
  Index layer = 0;
  Index kv_head = 0;
};

namespace caches {
inline constexpr std::string_view kFormat = "kvbench-caches";
inline constexpr Index kVersion = 1;

/// The path of an entry in its group.
std::string entry_path(const CachePlace& place);

/// Visits the attributes of an entry: visit(name, member). Those of an absent one come first.
template <class Cache, class Visit>
void each_attribute(Cache& cache, const Visit& visit) {
  visit("scoring_queries", cache.scoring_queries);
  visit("infeasible", cache.infeasible);
  visit("failed", cache.failed);
  if (cache.absent()) {
    return;
  }
  visit("aux_bytes", cache.aux_bytes);
  visit("payload_bytes", cache.payload_bytes);
  visit("quantised", cache.quantized);
  visit("transient_bytes", cache.transient_bytes);
  visit("compress_ms", cache.compress_ms);
  visit("degenerate", cache.degenerate);
  visit("diag", cache.diag);
}
}  // namespace caches

/// Writes PATH.tmp, which close() renames to PATH. Not thread-safe. Throws IoError;
/// std::logic_error for an entry outside a group.
class CacheWriter {
 public:
  CacheWriter(const std::string& path, const CachesMeta& meta);
  /// Without close(), removes PATH.tmp and leaves PATH as it was.
  ~CacheWriter();
  CacheWriter(const CacheWriter&) = delete;
  CacheWriter& operator=(const CacheWriter&) = delete;

  /// The group of the next entries.
  void begin_group(const CacheGroup& group);
  /// Keys and values are stored as float16 if `dtype` is float16 and no value changes, otherwise as
  /// float32.
  void put(const CachePlace& place, const HeadCache& cache, DType dtype);
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An open caches file. Throws InputError of one line: file, path inside it, got, expected.
class CacheReader {
 public:
  /// Reads and checks all attributes of the root and of the groups. Entries that cannot be read
  /// are refused when they are asked for.
  explicit CacheReader(const std::string& path);
  ~CacheReader();
  CacheReader(CacheReader&&) noexcept;
  CacheReader& operator=(CacheReader&&) noexcept;

  const std::string& path() const;
  const CachesMeta& meta() const;
  const std::vector<CacheGroup>& groups() const;

  /// The shapes that an entry must have: at most `largest` rows of d and dv.
  struct Shape {
    Index largest = 0;
    Index d = 0;
    Index dv = 0;
  };
  /// An entry, or nothing if the group has none there. Values are finite, weights below infinity,
  /// tokens at least -1 and not compared with the trace's. Thread-safe.
  std::optional<HeadCache> read(std::size_t group, const CachePlace& place,
                                const Shape& shape) const;
  bool has(std::size_t group, const CachePlace& place) const;
  /// "FILE: /group/prompts/...", for messages.
  std::string where(std::size_t group, const CachePlace& place) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
