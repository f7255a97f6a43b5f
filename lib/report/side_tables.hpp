// Every table that may stand beside OUT.csv.
#pragma once

#include <array>

#include "report/kept.hpp"
#include "report/layers.hpp"
#include "report/queries.hpp"
#include "report/side_table.hpp"
#include "report/steps.hpp"

namespace kvbench {

inline std::array<const SideTable*, 4> all_side_tables() {
  return {&steps_table(), &kept_table(), &queries_table(), &layers_table()};
}

}  // namespace kvbench
