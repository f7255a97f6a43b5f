// Slow reference of capkv: every rotation, weight and matrix written out.
#pragma once

#include "reference/expected_attention.hpp"

namespace reference {

/// Scores of `tokens`. mu: the mean over queries [begin, end), un-rotated by cos, sin [p, pairs],
/// and over positions [prompt, prompt + future) of the query turned to that position (tables null:
/// queries as stored). A by elimination.
inline Vec capkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                 Index end, const kvbench::Matrix* cos, const kvbench::Matrix* sin, bool half,
                 Index future, Real tau, ReferenceReduce reduce = ReferenceReduce::mean) {
  const auto d = static_cast<std::size_t>(head.d());
  const auto dv = static_cast<std::size_t>(head.dv());
  const Rows keys = rows_of(head.k);
  const Rows values = rows_of(head.v);
  Rows per_head;
  for (const kvbench::Matrix& q : head.q) {
    const Rows queries = rows_of(q);
    Vec mu(d, 0);  // its length plays no part
    for (Index j = begin; j < end; ++j) {
      const Vec& stored = queries[j - head.q_start()];
      const Vec before = cos == nullptr ? stored : before_rotation(stored, j, *cos, *sin, half);
      for (Index p = end; p < (cos == nullptr ? end + 1 : end + future); ++p) {
        const Rows r = cos == nullptr ? Rows() : rotation(*cos, *sin, p, d, half);
        for (std::size_t t = 0; t < d; ++t) {
          mu[t] += cos == nullptr ? before[t] : dot(r[t], before);
        }
      }
    }
    Real largest = -1;
    for (const Index i : tokens) {
      largest = std::max(largest, cosine(keys[i], mu));
    }
    Vec weights;
    Rows a(dv, Vec(dv, 0));
    for (std::size_t t = 0; t < dv; ++t) {
      a[t][t] = 1;
    }
    for (const Index i : tokens) {
      weights.push_back(std::exp(tau * (cosine(keys[i], mu) - largest)));
      for (std::size_t t = 0; t < dv; ++t) {
        for (std::size_t u = 0; u < dv; ++u) {
          a[t][u] += (weights.back() + 1e-6L) * values[i][t] * values[i][u];
        }
      }
    }
    Vec scores;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Vec& v = values[tokens[i]];
      scores.push_back(weights[i] * dot(v, eliminate(a, v)));
    }
    per_head.push_back(scores);
  }
  return reduced(per_head, reduce);
}

}  // namespace reference
