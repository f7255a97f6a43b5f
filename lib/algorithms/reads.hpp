// What queries read under the retrieval protocol.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/read_lists.hpp"
#include "core/compressed.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Entries to quantize: what another method holds or made, in its order.
struct KeptEntries {
  Matrix k;                      ///< [c, d]
  Matrix v;                      ///< [c, dv]
  std::vector<Index> positions;  ///< as MadeTokens has them
};

/// Bytes of quantized entries.
struct CodeBytes {
  Index codes = 0;   ///< payload
  Index scales = 0;  ///< aux: scales, norms, means, masks

  Index all() const { return codes + scales; }
  CodeBytes operator+(const CodeBytes& o) const { return {codes + o.codes, scales + o.scales}; }
};

/// Dequantized entries.
struct CodedEntries {
  Matrix k;  ///< [c, d]
  Matrix v;  ///< [c, dv]
  CodeBytes bytes;
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
  Index index_bytes = 0;  ///< held beside the cache
  /// Bytes that every query reads before it selects tokens; none: the whole index.
  std::optional<Index> index_read = {};
  /// R@Q: the task's tokens as they are held and read, in order; none: as in the trace. `fixed` is
  /// empty then.
  std::optional<CodedEntries> coded = {};
  std::string degenerate = {};
  Figures diag = {};

  Index index_bytes_read() const { return index_read.value_or(index_bytes); }
};

/// An index over a task's tokens. Building it is what `compress_ms` times; `search` is called once,
/// and its time counts as attending.
class ReadIndex {
 public:
  virtual ~ReadIndex() = default;
  /// Throws Infeasible if the queries cannot read as little as the task's budget.
  virtual Reads search() = 0;
};

}  // namespace kvbench
