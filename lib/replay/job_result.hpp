// What one job returns: rows of OUT.csv and what the tables beside it are made from.
#pragma once

#include <optional>
#include <vector>

#include "core/types.hpp"
#include "report/schema.hpp"
#include "trace/caches.hpp"

namespace kvbench {

/// One evaluated step of one query head in a stream.
struct Step {
  Index position = 0;      ///< of the query, 0-based
  double rel_error = 0.0;  ///< |z-a| / |a| of this query
  Index bytes = 0;         ///< sinks, recent window and what the method holds after this position

  friend bool operator==(const Step&, const Step&) = default;
};

/// The tokens that a KV head's cache held exactly when the query at `position` attended.
struct KeptSet {
  Index position = 0;         ///< of the query, 0-based
  std::vector<Index> tokens;  ///< strictly ascending; sinks and recent tokens included

  friend bool operator==(const KeptSet&, const KeptSet&) = default;
};

/// A KV head's part of its layer's error, rounded to float32.
struct LayerPart {
  Matrix exact;        ///< [m, group * dv]: exact outputs of the evaluated queries, heads abreast
  Matrix differences;  ///< estimates less exact outputs
};

/// A row per replayed query head of the unit, in order. The other members are empty where the rows
/// were not measured (has_lines).
struct JobResult {
  std::vector<Row> rows;
  std::vector<std::vector<Step>> steps;           ///< stream: by row, the evaluated steps
  std::vector<KeptSet> kept;                      ///< at the end; a stream's at every recorded step
  std::vector<std::vector<double>> query_errors;  ///< prefill: by row, of every evaluated query
  std::optional<HeadCache> cache;                 ///< where the plan exports caches
  LayerPart layer;                                ///< where the plan makes the layer's error
};

}  // namespace kvbench
