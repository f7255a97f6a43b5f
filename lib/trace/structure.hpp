// Internal to lib/trace: everything that can be refused without reading a value.
#pragma once

#include <string>

#include "core/rope.hpp"
#include "trace/hdf5_util.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// Opens `path` read-only. Refuses what is no HDF5 file or one that HDF5 cannot open.
Handle open_file(const std::string& path);

/// Checks groups, attributes, datasets, shapes and storage of an open file and describes them.
/// Datasets that `require` does not ask for may be absent; those that are there are checked.
TraceMeta read_structure(const Object& root, Require require);

/// Path of a layer's group below the root, "prompts/<id>/layers/<l>".
std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer);

/// The layout of the rotary tables in `group`.
RopeLayout rope_layout(const Object& group);

}  // namespace kvbench::h5
