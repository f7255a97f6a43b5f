// Reads traces (docs/trace_format.md): checks all structure when a file is opened, then returns one
// KV head at a time, so that memory does not depend on the size of the file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/extra.hpp"
#include "core/rope.hpp"
#include "core/types.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// An open trace.
///
/// HDF5 reads the structure, first in a process of its own (canary.hpp), which may die; values are
/// read without it. Threads: all reads may run at the same time, on one reader or several, and use
/// OpenMP threads of their own; opening is for one thread at a time. Errors: InputError of one line
/// that names the file, the path inside it, what is wrong and what was expected.
class TraceReader {
 public:
  /// Opens `path` and checks everything in docs/trace_format.md except values. Key-only layers are
  /// accepted with Require::keys.
  explicit TraceReader(const std::string& path, Require require = Require::all);
  ~TraceReader();
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  const TraceMeta& meta() const;

  /// SHA-256 of the open file. Throws IoError.
  std::string sha256() const;
  /// Whether size and times are as when the file was opened. False is no proof of a change, because
  /// a new name gives false too; compare sha256() then.
  bool unchanged() const;

  /// Keys, values and every query of the group of one KV head, as float32, all finite. Without
  /// stored values `v` is [n, 0], without stored queries `q` is empty. `prompt` and `layer` are
  /// positions in meta().prompts and its layers (not a layer's number); 0 <= kv_head < kv_heads.
  /// Reads only the chunks that intersect these heads. Throws InputError on NaN or infinity (naming
  /// head and token), corrupt data, and an index out of range.
  KvHead read_head(std::size_t prompt, std::size_t layer, Index kv_head) const;

  /// One head of one dataset of a layer that has it, [n, d], [n, dv] or [nq, d]: a query head for
  /// queries, otherwise a KV head. Errors as for read_head.
  Matrix read_rows(std::size_t prompt, std::size_t layer, LayerTensor what, Index head) const;

  /// The rotary tables of a layer, all finite, or null. Layers that share tables share the result
  /// while it is in use. Throws InputError on values that are no rotation.
  std::shared_ptr<const RopeTables> read_rope(std::size_t prompt, std::size_t layer) const;

  /// The columns of the output projection that multiply the query heads of one KV head: float32
  /// [hidden, group * dv], all finite, dv columns for each query head in order. Empty if the layer
  /// has none. Errors as for read_head, which name row and column in the file.
  Matrix read_o_proj(std::size_t prompt, std::size_t layer, Index kv_head) const;

  /// Norms of the residual stream that the attention output is added to, by stored query: [nq],
  /// finite and at least 0. Empty if the layer has none. Throws InputError on other values.
  std::vector<float> read_residual_norm(std::size_t prompt, std::size_t layer) const;

  /// A set of extra queries of the layer (LayerMeta::extra) for one KV head: the queries of its
  /// group, and its keys. Positions of rotation ascend from 0. Errors as for read_head, which name
  /// queries instead of tokens.
  ExtraSet read_extra(std::size_t prompt, std::size_t layer, const std::string& name,
                      Index kv_head) const;

  /// Scores of the layer (LayerMeta::scores) for one KV head's tokens. Errors as for read_head.
  NamedScores read_scores(std::size_t prompt, std::size_t layer, const std::string& name,
                          Index kv_head) const;

  /// Token ids of a prompt, [n_tokens], or empty.
  std::vector<std::int32_t> read_token_ids(std::size_t prompt) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
