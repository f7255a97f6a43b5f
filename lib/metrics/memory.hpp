// What a cache weighs: payload (keys and values at the trace's element type, or what a method
// really stores in their place) plus aux (weights, indices, scores, counts).
#pragma once

#include <optional>

#include "core/types.hpp"

namespace kvbench {

/// What is held of the middle of one KV head, counted by the replay from what a method returned.
struct Holding {
  Index pairs = 0;       ///< exact (k,v) pairs
  Index made_pairs = 0;  ///< (k,v) pairs that are in no trace
  Index quantised = 0;   ///< those of them that are tokens of the trace in fewer bits
  Index keys_only = 0;   ///< keys stored without a value (a denominator's own)
  Index aux_bytes = 0;
  std::optional<Index> payload_bytes;  ///< stored otherwise than as rows (codes, sketches)
  Index transient_bytes = 0;
};

/// The memory columns of a row. Sinks and recent tokens count in both `bytes` and `full_bytes`.
struct MemoryFigures {
  Index tokens_kept = 0;
  Index middle_bytes = 0;  ///< of the middle alone; what a budget bounds
  Index bytes = 0;
  Index full_bytes = 0;
  double ratio = 0.0;
  double middle_ratio = 0.0;  ///< 1 where there is no middle: nothing was compressed
  Index aux_bytes = 0;
  Index transient_bytes = 0;
};

/// `n` tokens of which `middle` are up for compression.
MemoryFigures memory_figures(const Holding& holding, const KvHead& head, Index middle);

}  // namespace kvbench
