// Internal to lib/trace: what a trace holds, checked without reading a value.
#pragma once

#include <string>

#include "trace/structure_tensors.hpp"

namespace kvbench::h5 {

/// Checks groups, attributes, datasets, shapes and storage of a trace. Datasets that `require` does
/// not name may be absent.
Structure read_structure(const Hdf5Object& root, Require require, const Limits& limits = {});

/// The path of a layer's group in the file.
std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer);

}  // namespace kvbench::h5
