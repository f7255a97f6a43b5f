// A job's part of the error of its layer.
#pragma once

#include "replay/head_input.hpp"
#include "replay/job_result.hpp"

namespace kvbench {

/// Adds the outputs of one query head, exact and estimated [m, dv], where the plan makes the error
/// of its layer.
void add_layer_part(const HeadInput& c, Index q_head, const MatrixD& exact, const MatrixD& estimate,
                    LayerPart& part);

}  // namespace kvbench
