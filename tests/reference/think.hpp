// ThinK by its definition.
#pragma once

#include <algorithm>
#include <numeric>

#include "reference/reference.hpp"

namespace reference {

/// Channels, ascending, that stay of `keys` when `dropped` go: those with the largest product of
/// the mean over `queries` of q_c^2 and the mean over `keys` of k_c^2; of equal ones the lowest.
inline std::vector<Index> thin_channels(const Rows& keys, const Rows& queries,
                                        std::size_t dropped) {
  const auto mean_square = [](const Rows& rows, std::size_t c) {
    Real sum = 0;
    for (const Vec& row : rows) {
      sum += row[c] * row[c];
    }
    return rows.empty() ? 0 : sum / static_cast<Real>(rows.size());
  };
  Vec scores;
  for (std::size_t c = 0; c < keys[0].size(); ++c) {
    scores.push_back(mean_square(queries, c) * mean_square(keys, c));
  }
  std::vector<Index> order(scores.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](Index a, Index b) { return scores[a] > scores[b]; });
  order.resize(order.size() - dropped);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace reference
