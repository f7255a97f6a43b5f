// Clusters of tokens held as their mean, weighted by their count (count-merge, kmeans).
#pragma once

#include "algorithms/contract.hpp"
#include "attention/merge_rows.hpp"

namespace kvbench {

/// Bytes of the count that each list is held with (float32).
inline constexpr Index kCountBytes = 4;

/// One entry per list of positions. A list of one token is held with weight 1. A longer one is
/// made: mean key and value (float64, in the list's order, rounded once to the trace's element
/// type), weighted by its count. Made entries are in the order of their lists. Lists must not be
/// empty; lists of one token must be ascending. The caller adds the bytes of counts.
inline Compressed mean_of_each(const Task& task, std::span<const std::vector<Index>> lists) {
  Compressed out;
  RowMerge means;
  for (const std::vector<Index>& list : lists) {
    if (list.size() == 1) {
      out.held.tokens.push_back(list.front());
      continue;
    }
    const auto begin = static_cast<Index>(means.members.size());
    means.members.insert(means.members.end(), list.begin(), list.end());
    means.lists.push_back({begin, static_cast<Index>(means.members.size())});
    out.made.weights.push_back(static_cast<float>(list.size()));
  }
  out.made.k = merge_rows(task.head.k, means, task.head.dtype);
  out.made.v = merge_rows(task.head.v, means, task.head.dtype);
  return out;
}

}  // namespace kvbench
