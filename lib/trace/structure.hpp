// Internal to lib/trace: everything that can be refused without reading a value.
#pragma once

#include <string>

#include "core/rope.hpp"
#include "trace/hdf5_object.hpp"
#include "trace/schema.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// What docs/trace_format.md speaks of.
const Request& trace_request();

/// Checks groups, attributes, datasets, shapes and storage of a surveyed file of `file_bytes` and
/// describes them. Datasets that `require` does not ask for may be absent; those that are there are
/// checked.
TraceMeta read_structure(const Object& root, std::uint64_t file_bytes, Require require);

/// The group of a layer.
Object layer_group(const Object& root, const PromptMeta& prompt, const LayerMeta& layer);

/// The layout of the rotary tables in `group`.
RopeLayout rope_layout(const Object& group);

}  // namespace kvbench::h5
