// The result of a job: rows of OUT.csv, and data for the side tables.
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
  Index bytes = 0;         ///< of sinks, recent window and held entries after this position

  friend bool operator==(const Step&, const Step&) = default;
};

/// Tokens that the cache held exactly when the query at `position` attended.
struct KeptSet {
  Index position = 0;         ///< of the query, 0-based
  std::vector<Index> tokens;  ///< strictly ascending, with sinks and recent tokens

  friend bool operator==(const KeptSet&, const KeptSet&) = default;
};

/// A KV head's part of its layer's error, rounded to float32.
struct LayerPart {
  Matrix exact;        ///< [m, group * dv]: exact outputs of the evaluated queries
  Matrix differences;  ///< [m, group * dv]: estimates minus exact outputs
};

/// Members other than `rows` are empty if the rows were not measured (has_lines).
struct JobResult {
  std::vector<Row> rows;                          ///< by replayed query head of the unit
  std::vector<std::vector<Step>> steps;           ///< stream: by row and evaluated step
  std::vector<KeptSet> kept;                      ///< by step of kept_steps()
  std::vector<std::vector<double>> query_errors;  ///< by row and evaluated query
  std::optional<HeadCache> cache;                 ///< if the plan exports caches
  LayerPart layer;                                ///< if the plan makes the layer's error
};

}  // namespace kvbench
