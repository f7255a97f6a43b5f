// The second table of a stream: OUT.steps.csv, a line per evaluated step of each row of OUT.csv. It
// is joined with that row by the key columns, which both tables have under the same names.
#pragma once

#include <span>
#include <string>

#include "core/types.hpp"
#include "report/side_table.hpp"

namespace kvbench {

/// One evaluated step of one query head.
struct Step {
  Index position = 0;      ///< of the query, 0-based
  double rel_error = 0.0;  ///< |z-a| / |a| of this query
  Index bytes = 0;  ///< sinks, recent window and what the method holds, after this position came

  friend bool operator==(const Step&, const Step&) = default;
};

/// Key columns of the main table in its order, then step, rel_error, bytes.
const SideTable& steps_table();

/// The step's line; `row`: all columns of its row in the main table (to_fields).
Fields step_fields(std::span<const std::string> row, const Step& step);

}  // namespace kvbench
