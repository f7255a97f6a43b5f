// Slow reference of CAKE's scores and of what a layer's preference is made of.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/selection.hpp"

namespace reference {

struct Cake {
  Vec scores;         // of the tokens
  Real entropy = 0;   // over tokens, queries [begin, end) and the group's heads
  Real variance = 0;  // over the queries, summed over tokens and heads
};

inline Cake cake(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                 Index end, Real gamma, Index kernel, ReferenceReduce reduce) {
  Cake out;
  Rows per_head;
  for (Index g = 0; g < static_cast<Index>(head.q.size()); ++g) {
    Rows p;
    for (Index j = begin; j < end; ++j) {
      p.push_back(attention(head, g, j).p);
    }
    const auto count = static_cast<Real>(p.empty() ? 1 : p.size());
    Vec plain(static_cast<std::size_t>(head.n()), 0);
    for (const Index i : tokens) {
      Real mean = 0;
      for (const Vec& row : p) {
        mean += row[i] / count;
        out.entropy -= row[i] * std::log(row[i] + 1e-10L);
      }
      Real variance = 0;
      for (const Vec& row : p) {
        variance += std::pow(row[i] - mean, 2) / std::max<Real>(1, count - 1);
      }
      out.variance += variance;
      plain[i] = mean + gamma * variance;
    }
    Vec pooled;
    for (const Index i : tokens) {
      Real sum = 0;
      for (Index k = -(kernel / 2); k <= kernel / 2; ++k) {
        const Index at = i + k;
        sum += at >= 0 && at < head.n() ? plain[at] : 0;
      }
      pooled.push_back(sum / static_cast<Real>(kernel));
    }
    per_head.push_back(pooled);
  }
  out.scores = reduced(per_head, reduce);
  return out;
}

}  // namespace reference
