#include "trace/structure_tensors.hpp"

#include <utility>

namespace kvbench::h5 {

const Tensor& Structure::add(const Hdf5Object& group, const Spec& spec) {
  return add(open_tensor(group, spec, meta.dtype));
}

const Tensor& Structure::add(Tensor tensor) {
  std::string path = tensor.where.path;
  return tensors.insert_or_assign(std::move(path), std::move(tensor)).first->second;
}

}  // namespace kvbench::h5
