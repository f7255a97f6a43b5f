// Internal to lib/trace: checks of a trace that read no value.
#pragma once

#include <string>

#include "core/rope.hpp"
#include "trace/hdf5_object.hpp"
#include "trace/schema.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// The paths and attributes of docs/trace_format.md.
const Request& trace_request();

/// Checks groups, attributes, datasets, shapes and storage of a surveyed file of `file_bytes`, and
/// returns what they describe. Datasets that `require` does not name may be absent.
TraceMeta read_structure(const Object& root, std::uint64_t file_bytes, Require require);

/// The group of a layer.
Object layer_group(const Object& root, const PromptMeta& prompt, const LayerMeta& layer);

/// The layout of the rotary tables in `group`.
RopeLayout rope_layout(const Object& group);

}  // namespace kvbench::h5
