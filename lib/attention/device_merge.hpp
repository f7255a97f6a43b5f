// merge_rows on a machine: the launches around merge_rows_kernels.hpp.
#pragma once

#include <algorithm>
#include <span>

#include "attention/merge_rows.hpp"
#include "attention/merge_rows_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// merge_rows on a machine, equal to the CPU's to the bit. `from` [., cols] lies in the machine's
/// memory. Memory beside it: the lists, and the merged rows, some at a time as scratch_bytes has
/// it, one at least.
template <class M>
Matrix merge_rows_on(M& machine, const float* from, Index cols, const RowMerge& merge, DType type) {
  const auto count = static_cast<Index>(merge.lists.size());
  Matrix out(count, cols);
  if (count == 0) {
    return out;
  }
  const Array<Index, M> members(machine, merge.members);
  const Array<double, M> shares(machine, merge.shares);
  const Array<Range, M> lists(machine, merge.lists);
  const Array<Index, M> onto(machine, merge.onto);
  const auto room = static_cast<Index>(machine.scratch_bytes() / sizeof(float));
  const Index at_once = std::clamp<Index>(room / cols, 1, count);
  const Array<float, M> rows(machine, at_once * cols);
  for (Index first = 0; first < count; first += at_once) {
    const Index now = std::min(at_once, count - first);
    const MergeRows kernel{from,
                           members.data(),
                           shares.data(),
                           lists.data() + first,
                           onto.data() + (merge.onto.empty() ? 0 : first),
                           now,
                           cols,
                           type,
                           rows.data()};
    machine.launch(kernel, kernel.blocks());
    rows.get({out.row(first), static_cast<std::size_t>(now * cols)});
  }
  return out;
}

}  // namespace kvbench
