#include "attention/top_k.hpp"

#include <algorithm>
#include <numeric>

namespace kvbench {

std::vector<Index> top_places(std::span<const double> scores, Index count) {
  std::vector<Index> order(scores.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto better = [&](Index a, Index b) {
    const double x = scores[a];
    const double y = scores[b];
    return x != y ? x > y : a < b;
  };
  const auto cut = order.begin() + count;
  std::nth_element(order.begin(), cut == order.end() ? order.begin() : cut, order.end(), better);
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace kvbench
