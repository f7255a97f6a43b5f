// A side table of both protocols: OUT.layers.csv, a line for each layer and what was run on it,
// with the error of what all heads of the layer together add to the residual stream.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/types.hpp"
#include "report/side_table.hpp"

namespace kvbench {

/// Schema and key columns of the main table in its order, without q_head and kv_head, then
/// out_rel_error and residual_rel_error (empty where the trace has no norms). A line joins the rows
/// of all query heads of its layer.
const SideTable& layers_table();

/// The line of a layer; `row`: all columns of any of its rows in the main table (to_fields).
Fields layer_fields(std::span<const std::string> row, double out_rel_error,
                    std::optional<double> residual_rel_error);

}  // namespace kvbench
