// The second table of a stream: OUT.steps.csv, a row per evaluated step of each row of OUT.csv. It
// is joined with that row by the key columns, which both tables have under the same names.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"

namespace kvbench {

/// One evaluated step of one query head.
struct Step {
  Index position = 0;      ///< of the query, 0-based
  double rel_error = 0.0;  ///< |z-a| / |a| of this query
  Index bytes = 0;         ///< recent window and what the method holds, after this position came

  friend bool operator==(const Step&, const Step&) = default;
};

/// OUT.steps.csv for OUT.csv (and for OUT).
std::filesystem::path steps_path(const std::filesystem::path& csv);

/// Key columns of the main table in its order, then step, rel_error, bytes.
const std::vector<std::string>& steps_header();

/// The step's fields; `row`: all columns of its row in the main table (to_fields).
Fields step_fields(std::span<const std::string> row, const Step& step);

/// row_key of the main table's row that a row of steps belongs to.
std::string step_row_key(std::span<const std::string> fields);

/// Its column `step`. Throws InputError where that is no number.
Index step_position(std::span<const std::string> fields);

/// Whether a row of this status has steps: those of measured rows do.
bool has_steps(std::string_view status);

}  // namespace kvbench
