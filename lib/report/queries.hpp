// A side table of the prefill protocol: OUT.queries.csv, a line per evaluated query of each row of
// OUT.csv, with that query's own error. Joined with the row by the key columns.
#pragma once

#include <span>
#include <string>

#include "core/types.hpp"
#include "report/side_table.hpp"

namespace kvbench {

/// Schema and key columns of the main table in its order, then step (the query's position), offset
/// (its number among the evaluated queries, from 0), rel_error (|z-a| / |a| of this query).
const SideTable& queries_table();

/// The line of a query; `row`: all columns of its row in the main table (to_fields).
Fields query_fields(std::span<const std::string> row, Index position, Index offset,
                    double rel_error);

}  // namespace kvbench
