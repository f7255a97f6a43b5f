// Internal to lib/trace: the structure of a layer's extra queries and scores.
#pragma once

#include <cstddef>
#include <string>

#include "trace/hdf5_object.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// Check `extra` and `scores` of a layer's group, if present, and describe them in `layer`, whose
/// shapes are known. Without q, extra queries are ignored. `parts` counts segments and scores of
/// the trace, because links can multiply them.
void read_extra(const Object& group, const TraceMeta& meta, LayerMeta& layer, std::size_t& parts);
void read_scores(const Object& group, const TraceMeta& meta, LayerMeta& layer, std::size_t& parts);

Object extra_segment_group(const Object& layer, const std::string& name, std::size_t segment);
Object scores_group(const Object& layer);

}  // namespace kvbench::h5
