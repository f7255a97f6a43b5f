// Part of a job in the error of its layer.
#pragma once

#include "replay/head_input.hpp"
#include "replay/job_result.hpp"

namespace kvbench {

/// Writes the outputs of one query head, exact and estimated, both [m, dv], into `part`. Does
/// nothing if the plan has no error of this layer.
void add_layer_part(const HeadInput& c, Index q_head, const MatrixD& exact, const MatrixD& estimate,
                    LayerPart& part);

}  // namespace kvbench
