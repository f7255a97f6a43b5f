// H2O's greedy eviction as a stream, every step from its definition: softmax over what is held,
// sums, the lightest goes.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

struct EvictionReference {
  Index kept = 0;        ///< tokens outside the window at most
  Index heavy = 0;       ///< of which heavy hitters
  Index window = 0;      ///< most recent tokens that are never evicted
  bool largest = false;  ///< group reduction: the largest weight instead of the mean
  Index sink = 0;        ///< first tokens: attended from their arrival on, and nothing else

  std::map<Index, float> score;  ///< of every token held, the window's too; sinks have none

  /// Position j arrives; the evicted token and its score, or -1.
  std::pair<Index, float> step(const kvbench::KvHead& head, Index j);
  /// Tokens held outside the window, given that j came last.
  std::vector<Index> outside(Index j) const;
};

inline std::vector<Index> EvictionReference::outside(Index j) const {
  std::vector<Index> out;
  for (const auto& [token, s] : score) {
    if (token <= j - window) {
      out.push_back(token);
    }
  }
  return out;
}

inline std::pair<Index, float> EvictionReference::step(const kvbench::KvHead& head, Index j) {
  if (j >= sink) {
    score[j] = 0;
  }
  const Rows k = rows_of(head.k);
  std::map<Index, Real> weight;
  for (const kvbench::Matrix& queries : head.q) {
    const Vec q = rows_of(queries)[j];
    const auto term = [&](Index token) {
      return std::exp(static_cast<Real>(head.scale) * dot(k[token], q));
    };
    Real sum = 0;
    for (Index token = 0; token < sink && token <= j; ++token) {
      sum += term(token);
    }
    std::map<Index, Real> own;
    for (const auto& [token, s] : score) {
      own[token] = term(token);
      sum += own[token];
    }
    for (const auto& [token, e] : own) {
      const Real part = e / sum;
      weight[token] = largest ? std::max(weight[token], part)
                              : weight[token] + part / static_cast<Real>(head.q.size());
    }
  }
  for (auto& [token, s] : score) {
    s = static_cast<float>(static_cast<Real>(s) + weight[token]);
  }
  const std::vector<Index> all = outside(j);
  if (static_cast<Index>(all.size()) <= kept) {
    return {-1, 0.0F};
  }
  const std::size_t candidates = all.size() - static_cast<std::size_t>(kept - heavy);
  Index lightest = all[0];
  for (std::size_t i = 1; i < candidates; ++i) {
    if (score[all[i]] <= score[lightest]) {
      lightest = all[i];
    }
  }
  const float last = score[lightest];
  score.erase(lightest);
  return {lightest, last};
}

}  // namespace reference
