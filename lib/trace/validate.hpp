// Reads every selected value of a trace, so that NaN, infinity and corrupt data are found before
// a long run starts. Holds one head at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "core/types.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Which heads to read; an absent list selects all. Entries that a trace does not hold match
/// nothing and are no error here.
struct TraceSelection {
  std::optional<std::vector<std::size_t>> prompts;  ///< positions in TraceMeta::prompts
  std::optional<std::vector<Index>> layers;         ///< layer indices in the model
  std::optional<std::vector<Index>> kv_heads;
};

/// One KV head of a pass over a trace: positions for TraceReader::read_head and how far it is.
struct HeadVisit {
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
  std::size_t done = 0;   ///< heads finished, this one included
  std::size_t total = 0;  ///< heads selected
};

/// Called once per head, in file order.
using HeadCallback = std::function<void(const HeadVisit&, const KvHead&)>;

/// Reads every selected head with its columns of the output projection, and the rotary tables and
/// residual norms of its layer; hands the head to `on_head` if given, and returns how many heads
/// there were. What a reader of key-only traces finds absent is absent in the head too (read_head).
/// Throws InputError at the first value that is not finite or cannot be decoded.
std::size_t validate_values(const TraceReader& reader, const TraceSelection& selection = {},
                            const HeadCallback& on_head = {});

}  // namespace kvbench
