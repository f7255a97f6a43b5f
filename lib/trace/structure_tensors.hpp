// Internal to lib/trace: what a trace holds.
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
  const Tensor& add(const Hdf5Object& group, const Spec& spec);
  const Tensor& add(Tensor tensor);
};

}  // namespace kvbench::h5
