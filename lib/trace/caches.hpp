// Caches files (docs/trace_format.md): what compression methods leave of the middle of a prompt,
// one entry per method, setting and KV head. Written by `replay --export-caches` and by any other
// program; read by `evaluate`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

namespace h5 {
class InputFile;
struct Survey;
}  // namespace h5

/// The denominator's own keys or weights.
struct CacheDenominator {
  std::optional<Matrix> k;        ///< [B2, d]; none: the numerator's keys
  std::vector<float> log_weight;  ///< [B2], or [B] without k; empty: all 0
};

/// What is left of the middle of one KV head, as attention sees it.
struct HeadCache {
  Matrix k;                         ///< [B, d]
  Matrix v;                         ///< [B, dv]
  std::vector<float> log_weight;    ///< [B]; empty: all 0
  std::vector<std::int32_t> token;  ///< [B], -1: made; empty: all made
  std::optional<CacheDenominator> denominator;
  std::optional<Index> aux_bytes;      ///< none: those of the weights
  std::optional<Index> payload_bytes;  ///< none: counted from the rows
  Index quantised = 0;                 ///< made entries that are tokens in fewer bits
  /// Positions, ascending, of tokens among the quantised that are counted as held exactly.
  std::vector<std::int32_t> counted;
  Index transient_bytes = 0;
  std::optional<double> compress_ms;
  std::optional<Index> scoring_queries;
  std::string infeasible;  ///< why the budget cannot be met; then only scoring_queries is there
  std::string failed;      ///< the error that the method ended with; likewise
  std::string degenerate;
  std::string diag;

  Index rows() const { return k.rows(); }
  /// Whether the method gave nothing for this head.
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

/// What all groups of a file share.
struct CachesMeta {
  std::vector<std::string> trace_sha256;
  std::string protocol = "prefill";
  Index sink = 0;
  Index recent = 0;
  Index queries = 0;
  std::string plan;  ///< hash of the run that wrote it; empty: another program did
};

/// Where an entry stands in a group.
struct CachePlace {
  std::string prompt;
  Index layer = 0;
  Index kv_head = 0;
};

/// Writes PATH.tmp, which takes the name PATH when it is whole. Not thread-safe.
/// Errors: IoError; std::logic_error where entries do not come by group.
class CacheWriter {
 public:
  CacheWriter(const std::string& path, const CachesMeta& meta);
  ~CacheWriter();  // without close(): the file goes
  CacheWriter(const CacheWriter&) = delete;
  CacheWriter& operator=(const CacheWriter&) = delete;

  /// What `put` writes to from now on.
  void begin_group(const CacheGroup& group);
  /// Keys and values are stored as `dtype` where that is float16 and they are such numbers, else as
  /// float32.
  void put(const CachePlace& place, const HeadCache& cache, DType dtype);
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An open caches file. What is wrong is refused in one line of InputError: file, path inside it,
/// got, expected.
class CacheReader {
 public:
  /// Reads and checks all attributes of the root and of the groups.
  explicit CacheReader(const std::string& path);
  /// Of a file whose survey is there already, whatever it says (caches::open, caches::request).
  CacheReader(h5::InputFile&& file, h5::Survey&& survey);
  ~CacheReader();
  CacheReader(CacheReader&&) noexcept;
  CacheReader& operator=(CacheReader&&) noexcept;

  const std::string& path() const;
  const CachesMeta& meta() const;
  const std::vector<CacheGroup>& groups() const;

  /// The shapes that an entry must have: at most `most` rows of d and dv. Thread-safe.
  struct Shape {
    Index largest = 0;
    Index d = 0;
    Index dv = 0;
  };
  /// Nothing where the group has no such entry. Values are finite, weights below infinity; tokens
  /// at least -1, and not compared with the trace's.
  std::optional<HeadCache> read(std::size_t group, const CachePlace& place,
                                const Shape& shape) const;
  bool has(std::size_t group, const CachePlace& place) const;
  /// "FILE: /group/prompts/...", for refusals.
  std::string where(std::size_t group, const CachePlace& place) const;

 private:
  explicit CacheReader(h5::InputFile&& file);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
