// Tokens that are held as their mean with their count as weight: what count-merge and kmeans leave.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/merge_rows.hpp"

namespace kvbench {

/// Bytes of the count that each list is held with (float32).
inline constexpr Index kCountBytes = 4;

/// Bytes that mean_of_each holds where `tokens` tokens are in `lists` lists, what it gives
/// included; and what the lists take themselves.
inline Index mean_of_each_bytes(const LayerFacts& layer, Index tokens, Index lists) {
  return made_bytes(layer, std::min(lists, tokens / 2)) + 24 * tokens + 32 * lists;
}
inline Index merged_lists_bytes(Index tokens, Index lists) {
  return 16 * tokens + 80 * lists;
}

/// Each list of positions as one entry. A list of one token is that token, held exactly with
/// weight 1; a longer one is made: the mean key and the mean value of its tokens (float64, summed
/// in the list's order, one rounding to the trace's element type), with their number as weight.
/// Entries of `made` are in the order of their lists. No list is empty; lists of one token come in
/// ascending order. Bytes of the counts are the caller's to add.
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
