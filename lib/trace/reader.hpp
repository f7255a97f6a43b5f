// Reads traces (docs/trace_format.md): checks all structure when a file is opened, then hands out
// one KV head at a time, so that memory does not depend on the size of the file.
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
/// Opening surveys the file in a process of its own (survey.hpp), in which all of HDF5 runs and
/// which may die. So a damaged file is refused, whatever it does to HDF5, and values are read
/// without HDF5. Threads: all reads may run at the same time, on one reader or several. Opening is
/// for one thread at a time. A read uses OpenMP threads of its own for decompression. Errors: every
/// refusal is an InputError of one line that names the file, the path inside it, what is wrong and
/// what was expected; a file that cannot be opened is one too.
class TraceReader {
 public:
  /// Opens `path` and checks everything that docs/trace_format.md refuses, but values. Layers
  /// without q or v are refused, unless `require` says that keys are enough.
  explicit TraceReader(const std::string& path, Require require = Require::all);
  ~TraceReader();
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  const TraceMeta& meta() const;

  /// SHA-256 of the open file, whatever has its name now. Throws IoError.
  std::string sha256() const;
  /// Whether nobody wrote to the file since it was opened, by its size and times. False is no
  /// proof: a new name changes them too. Then sha256() tells.
  bool unchanged() const;

  /// Keys, values and every query of the group of one KV head, as float32, all finite. Without
  /// stored values `v` is [n, 0], without stored queries `q` is empty.
  /// `prompt` and `layer` are positions in meta().prompts and its layers (not a layer's number);
  /// 0 <= kv_head < kv_heads. Reads only the chunks that intersect these heads.
  /// Throws InputError on NaN or infinity (naming head and token), on corrupt data, and on an
  /// index out of range.
  KvHead read_head(std::size_t prompt, std::size_t layer, Index kv_head) const;

  /// One head of one dataset of a layer that has it, [n, d], [n, dv] or [nq, d]: a query head for
  /// queries, else a KV head. Elements, positions and errors as for read_head, with a third of its
  /// memory or less.
  Matrix read_rows(std::size_t prompt, std::size_t layer, Rows what, Index head) const;

  /// The rotary tables of a layer, all finite; null where it has none. Layers that share tables
  /// share the object while somebody holds it. Throws InputError on values that are no rotation.
  std::shared_ptr<const RopeTables> read_rope(std::size_t prompt, std::size_t layer) const;

  /// The layer's output projection, the columns that multiply the query heads of one KV head:
  /// float32 [hidden, group * dv], all finite, dv columns for each query head in order. Empty where
  /// the layer has none. Reads no other columns, but whole chunks. Elements, positions and errors
  /// as for read_head; a value that is not finite is named by its row and its column in the file.
  Matrix read_o_proj(std::size_t prompt, std::size_t layer, Index kv_head) const;

  /// Norms of the residual stream that the layer's attention output is added to, by stored query:
  /// [nq], finite and at least 0, anything else throws InputError. Empty where the layer has none.
  std::vector<float> read_residual_norm(std::size_t prompt, std::size_t layer) const;

  /// A set of extra queries that the layer has (LayerMeta::extra), as one KV head sees it: the
  /// queries of its group, and its keys. Elements, positions in the file and errors as for
  /// read_head, queries named in place of tokens; positions of rotation that are negative or do not
  /// ascend, and norms that are not finite numbers >= 0, throw InputError. Reads nothing of other
  /// sets and heads but what shares a chunk.
  ExtraSet read_extra(std::size_t prompt, std::size_t layer, const std::string& name,
                      Index kv_head) const;

  /// Scores that the layer has (LayerMeta::scores) of one KV head's tokens; errors the same.
  NamedScores read_scores(std::size_t prompt, std::size_t layer, const std::string& name,
                          Index kv_head) const;

  /// Token ids of a prompt, [n_tokens]; empty if the file holds none.
  std::vector<std::int32_t> read_token_ids(std::size_t prompt) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbench
