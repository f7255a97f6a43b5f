// What one job leaves: its rows, and what the tables and files beside them are made of.
#pragma once

#include <optional>
#include <vector>

#include "core/types.hpp"
#include "report/kept.hpp"
#include "report/schema.hpp"
#include "report/steps.hpp"
#include "trace/caches.hpp"

namespace kvbench {

/// A KV head's part of its layer's error, rounded to float32.
struct LayerPart {
  Matrix exact;        ///< [m, group * dv]: exact outputs of the evaluated queries, heads abreast
  Matrix differences;  ///< estimates less exact outputs
};

/// A row per replayed query head of the unit, in order; all else is empty where the rows were not
/// measured (has_lines).
struct JobResult {
  std::vector<Row> rows;
  std::vector<std::vector<Step>> steps;           ///< stream: by row, the evaluated steps
  std::vector<KeptSet> kept;                      ///< at the end; a stream's at every recorded step
  std::vector<std::vector<double>> query_errors;  ///< prefill: by row, of every evaluated query
  std::optional<HeadCache> cache;                 ///< where the plan exports caches
  LayerPart layer;                                ///< where the plan makes the layer's error
};

}  // namespace kvbench
