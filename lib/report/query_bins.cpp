#include "report/query_bins.hpp"

#include <algorithm>

namespace kvbench {

std::vector<QueryBin> query_bins(Index queries) {
  constexpr Index kWidest = 32;
  std::vector<QueryBin> out;
  for (Index first = 0; first < queries;) {
    const Index width = std::clamp<Index>(first, 1, kWidest);
    out.push_back({first, std::min(first + width, queries) - 1});
    first += width;
  }
  return out;
}

}  // namespace kvbench
