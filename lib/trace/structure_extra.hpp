// Internal to lib/trace: the structure of a layer's extra queries and scores.
#pragma once

#include "trace/structure_tensors.hpp"

namespace kvbench::h5 {

/// Check `extra` and `scores` of a layer's group, if present, and describe them in `layer`, whose
/// shapes are known. Without q, extra queries are ignored.
void read_extra(const Hdf5Object& group, Structure& out, LayerMeta& layer);
void read_scores(const Hdf5Object& group, Structure& out, LayerMeta& layer);

}  // namespace kvbench::h5
