// Estimates the sizes of the side tables before a run.
#pragma once

#include <vector>

#include "replay/plan_spec.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

struct SideSize {
  const TableSpec* table = nullptr;
  double bytes = 0.0;
};

/// Returns the estimated bytes of this shard's side_tables(), within a factor of 1.5 for a mix of
/// methods. The kept tokens of a single method may take far less (streamingllm keeps one range).
/// Counts every row as measured, except rows of streams whose budget is below sinks and window.
std::vector<SideSize> side_sizes(const PlanSpec& plan);

}  // namespace kvbench
