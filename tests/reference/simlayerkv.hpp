// SimLayerKV's layers from its definition.
#pragma once

#include <algorithm>

#include "reference/reference.hpp"

namespace reference {

/// The mean softmax weight that queries [begin, end) of all heads' query heads give to what is not
/// in `middle`.
inline Real laziness(const std::vector<kvbench::KvHead>& layer, const std::vector<Index>& middle,
                     Index begin, Index end) {
  Real sum = 0;
  Real count = 0;
  for (const kvbench::KvHead& head : layer) {
    for (Index g = 0; g < static_cast<Index>(head.q.size()); ++g) {
      for (Index j = begin; j < end; ++j) {
        const Vec p = attention(head, g, j).p;
        for (Index i = 0; i < head.n(); ++i) {
          if (std::find(middle.begin(), middle.end(), i) == middle.end()) {
            sum += p[i];
          }
        }
        count += 1;
      }
    }
  }
  return sum / count;
}

/// By layer, whether it keeps its middle: `most` layers do, the least lazy ones; of equal ones the
/// lowest.
inline std::vector<bool> least_lazy(const Vec& laziness, Index most) {
  std::vector<bool> out(laziness.size(), false);
  for (Index taken = 0; taken < std::min<Index>(most, static_cast<Index>(out.size())); ++taken) {
    std::size_t best = out.size();
    for (std::size_t l = 0; l < out.size(); ++l) {
      if (!out[l] && (best == out.size() || laziness[l] < laziness[best])) {
        best = l;
      }
    }
    out[best] = true;
  }
  return out;
}

}  // namespace reference
