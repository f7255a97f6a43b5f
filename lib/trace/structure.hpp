// Internal to lib/trace: what a trace holds, checked without reading a value.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "core/rope.hpp"
#include "trace/dataset.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// Most of what links can multiply.
struct Limits {
  std::size_t layers = 100000;
  std::size_t parts = 1000000;  ///< segments of extra queries, and scores
};

struct Structure {
  TraceMeta meta;
  std::map<std::string, Tensor> tensors;           ///< all datasets, by path in the file
  std::map<std::string, RopeLayout> rope_layouts;  ///< of the tables of LayerMeta::rope_path
  Limits left = {};

  /// Opens a dataset of `group` and keeps it.
  const Tensor& add(const Hdf5Object& group, const Spec& spec) {
    Tensor tensor = open_tensor(group, spec, meta.dtype);
    return tensors.insert_or_assign(tensor.where.path, std::move(tensor)).first->second;
  }
};

/// Checks groups, attributes, datasets, shapes and storage of a trace. Datasets that `require` does
/// not name may be absent.
Structure read_structure(const Hdf5Object& root, Require require, const Limits& limits = {});

/// Check `extra` and `scores` of a layer's group, if present, and describe them in `layer`, whose
/// shapes are known. Without q, extra queries are ignored. (structure_extra.cpp)
void read_extra(const Hdf5Object& group, Structure& out, LayerMeta& layer);
void read_scores(const Hdf5Object& group, Structure& out, LayerMeta& layer);

/// The path of a layer's group in the file.
std::string layer_path(const PromptMeta& prompt, const LayerMeta& layer);

}  // namespace kvbench::h5
