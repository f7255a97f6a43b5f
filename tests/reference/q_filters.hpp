// Q-Filters' direction by power iteration in long double.
#pragma once

#include <cmath>

#include "reference/reference.hpp"

namespace reference {

/// First right singular vector of the queries of query head `g` at positions [begin, end), with the
/// sign of their mean projection.
inline Vec query_direction(const kvbench::KvHead& head, Index g, Index begin, Index end) {
  const Rows all = rows_of(head.q[g]);
  const Index start = head.n() - head.nq();
  Vec v(static_cast<std::size_t>(head.d()));
  for (std::size_t t = 0; t < v.size(); ++t) {
    v[t] = 1 + static_cast<Real>(t) / 7;  // across no direction by chance
  }
  for (int round = 0; round < 5000; ++round) {
    Vec next(v.size(), 0);
    for (Index j = begin; j < end; ++j) {
      const Vec& q = all[j - start];
      const Real along = dot(q, v);
      for (std::size_t t = 0; t < v.size(); ++t) {
        next[t] += along * q[t];
      }
    }
    const Real length = std::sqrt(dot(next, next));
    for (std::size_t t = 0; t < v.size(); ++t) {
      v[t] = next[t] / length;
    }
  }
  Real sum = 0;
  for (Index j = begin; j < end; ++j) {
    sum += dot(all[j - start], v);
  }
  for (Real& x : v) {
    x = sum < 0 ? -x : x;
  }
  return v;
}

}  // namespace reference
