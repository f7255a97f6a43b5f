#include "attention/top_k.hpp"

#include <algorithm>
#include <numeric>

#include "attention/device.hpp"

namespace kvbench {

std::vector<Index> top_places(std::span<const double> scores, Index count,
                              const DeviceHead* device) {
  if (device != nullptr && static_cast<Index>(scores.size()) >= kTopOnDevice) {
    return device->top_places(scores, count);
  }
  std::vector<Index> order(scores.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto better = [&](Index a, Index b) {
    const double x = scores[static_cast<std::size_t>(a)];
    const double y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto cut = order.begin() + count;
  std::nth_element(order.begin(), cut == order.end() ? order.begin() : cut, order.end(), better);
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace kvbench
