// most_similar on a machine: the launches around most_similar_kernels.hpp.
#pragma once

#include <span>
#include <vector>

#include "attention/dense_kernels.hpp"
#include "attention/device_tensors.hpp"
#include "attention/most_similar.hpp"
#include "attention/most_similar_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Equal to the CPU's to the bit. Memory beside the head: a copy of the keys of `to`, and the
/// lists.
template <class M>
std::vector<Index> most_similar_on(M& machine, const HeadTensors<M>& head,
                                   std::span<const Index> to, std::span<const Index> from) {
  std::vector<Index> out(from.size());
  if (from.empty()) {
    return out;
  }
  const Index d = head.head->d();
  const auto columns = static_cast<Index>(to.size());
  const auto rows = static_cast<Index>(from.size());
  const std::vector<double> norms = inverse_norms(head.head->k, to);
  const Array<Index, M> to_rows(machine, to);
  const Array<Index, M> from_rows(machine, from);
  const Array<double, M> inverse(machine, std::span<const double>(norms));
  const Array<float, M> packed(machine, d * columns);
  const Array<Index, M> place(machine, rows);
  const dense::PackTransposed<float, float> pack{
      head.k.data(), to_rows.data(), packed.data(), columns, d, columns, 1.0};
  machine.launch(pack, pack.blocks());
  const MostSimilar kernel{
      head.k.data(), from_rows.data(), packed.data(), inverse.data(), rows, columns, d,
      columns,       place.data()};
  machine.launch(kernel, kernel.blocks());
  place.get(out);
  return out;
}

}  // namespace kvbench
