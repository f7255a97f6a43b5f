// Internal to lib/trace: the structure of a layer's extra queries and scores.
#pragma once

#include <cstddef>
#include <string>

#include "trace/hdf5_object.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// Checks `extra` and `scores` of a layer's group, each where it is there, and describes them in
/// `layer`, whose own shapes are known. Without q, extra queries mean nothing and are ignored.
/// `parts` counts the segments and scores of the trace: links make many of them out of few.
void read_extra(const Object& group, const TraceMeta& meta, LayerMeta& layer, std::size_t& parts);
void read_scores(const Object& group, const TraceMeta& meta, LayerMeta& layer, std::size_t& parts);

/// The group of segment `segment` of the set `name`; the group of the layer's scores.
Object extra_segment_group(const Object& layer, const std::string& name, std::size_t segment);
Object scores_group(const Object& layer);

}  // namespace kvbench::h5
