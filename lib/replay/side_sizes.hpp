// How large the tables beside OUT.csv will be, before a run.
#pragma once

#include <vector>

#include "replay/plan_spec.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

struct SideSize {
  const TableSpec* table = nullptr;
  double bytes = 0.0;
};

/// Of this shard's side_tables(). An estimate: every row counts as measured (of a
/// stream but those below the bytes of sinks and window), a number has the
/// length of most, and tokens lie in the middle as scores scatter them. Of a mix of methods it is
/// right within a factor of 1.5; the kept tokens of one method alone may be fewer by far (one range
/// of streamingllm's).
std::vector<SideSize> side_sizes(const PlanSpec& plan);

}  // namespace kvbench
