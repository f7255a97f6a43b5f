// R-KV from its definition: the whole matrix of cosines, and the stream step by step.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

namespace reference {

struct RkvReference {
  Real lambda = 0.07L, threshold = 0.5L;
  Index kernel = 7;
  bool largest = true;  ///< of the query heads' logits; else their mean
};

/// What a stream holds beside sinks and recent window.
struct RkvStream {
  RkvReference rules;
  Index capacity = 0, buffer = 1, window = 8, sink = 0, recent = 0;
  std::vector<Index> own;
  int compressions = 0;

  void step(const kvbench::KvHead& head, Index j);
};

inline std::size_t place_of(const std::vector<Index>& cache, Index token) {
  return static_cast<std::size_t>(std::find(cache.begin(), cache.end(), token) - cache.begin());
}

/// [cache]: softmax of the mean over rows of the cosines, of which each row lost its own and that
/// of its last similar token.
inline Vec rkv_redundancy(const kvbench::KvHead& head, const std::vector<Index>& cache,
                          Real threshold) {
  const Rows keys = rows_of(head.k);
  const std::size_t n = cache.size();
  Rows cosine(n, Vec(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const Vec& a = keys[cache[i]];
      const Vec& b = keys[cache[j]];
      const Real norms = (std::sqrt(dot(a, a)) + 1e-8L) * (std::sqrt(dot(b, b)) + 1e-8L);
      cosine[i][j] = i == j ? 0 : dot(a, b) / norms;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = n; j-- > 0;) {
      if (j != i && cosine[i][j] > threshold) {
        cosine[i][j] = 0;
        break;
      }
    }
  }
  Vec means(n, 0);
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < n; ++i) {
      means[j] += cosine[i][j] / static_cast<Real>(n);
    }
  }
  return softmax(means);
}

/// [cache]: mean weight from queries [begin, end) over the cache's tokens before them; else 0.
inline Vec rkv_importance(const kvbench::KvHead& head, const std::vector<Index>& cache, Index begin,
                          Index end, bool largest) {
  const Rows keys = rows_of(head.k);
  std::vector<Rows> queries;
  for (const kvbench::Matrix& q : head.q) {
    queries.push_back(rows_of(q));
  }
  Vec out(cache.size(), 0);
  std::size_t seen = 0;
  while (seen < cache.size() && cache[seen] < begin) {
    ++seen;
  }
  for (Index j = begin; j < end && seen > 0; ++j) {
    Vec logits;
    for (std::size_t i = 0; i < seen; ++i) {
      Vec heads;
      for (const Rows& q : queries) {
        const Vec& query = q[j - (head.n() - head.nq())];
        heads.push_back(static_cast<Real>(head.scale) * dot(query, keys[cache[i]]));
      }
      Real sum = 0;
      for (const Real x : heads) {
        sum += x;
      }
      logits.push_back(largest ? *std::max_element(heads.begin(), heads.end())
                               : sum / static_cast<Real>(heads.size()));
    }
    const Vec weights = softmax(logits);
    for (std::size_t i = 0; i < seen; ++i) {
      out[i] += weights[i] / static_cast<Real>(end - begin);
    }
  }
  return out;
}

/// [own]; tokens at or behind `begin` are above all others, the newest most.
inline Vec rkv_scores(const kvbench::KvHead& head, const std::vector<Index>& cache,
                      const std::vector<Index>& own, Index begin, Index end,
                      const RkvReference& rules) {
  const Vec weights = rkv_importance(head, cache, begin, end, rules.largest);
  const Vec redundant = rkv_redundancy(head, cache, rules.threshold);
  std::vector<Index> free;
  for (const Index i : own) {
    if (i < begin) {
      free.push_back(i);
    }
  }
  Vec out;
  for (Index i = 0; i < static_cast<Index>(free.size()); ++i) {
    Real pooled = 0;
    for (Index j = 0; j < static_cast<Index>(free.size()); ++j) {
      if (std::abs(i - j) <= rules.kernel / 2) {
        pooled = std::max(pooled, weights[place_of(cache, free[j])]);
      }
    }
    out.push_back(rules.lambda * pooled - (1 - rules.lambda) * redundant[place_of(cache, free[i])]);
  }
  while (out.size() < own.size()) {
    out.push_back(1000 + static_cast<Real>(out.size()));
  }
  return out;
}

inline void RkvStream::step(const kvbench::KvHead& head, Index j) {
  const Index leaving = j - recent;
  if (leaving >= sink) {
    own.push_back(leaving);
  }
  if (static_cast<Index>(own.size()) <= capacity) {
    return;
  }
  std::vector<Index> cache;
  for (Index i = 0; i <= j; ++i) {
    if (i < sink || i > j - recent || std::find(own.begin(), own.end(), i) != own.end()) {
      cache.push_back(i);
    }
  }
  const Index gathered = std::min(buffer, capacity / 2 + 1);
  const Vec scores = rkv_scores(head, cache, own, std::max<Index>(0, j + 1 - window), j + 1, rules);
  std::vector<std::pair<Real, Index>> order;
  for (std::size_t i = 0; i < own.size(); ++i) {
    order.emplace_back(-scores[i], own[i]);
  }
  std::sort(order.begin(), order.end());
  own.clear();
  for (Index i = 0; i < capacity + 1 - gathered; ++i) {
    own.push_back(order[i].second);
  }
  std::sort(own.begin(), own.end());
  ++compressions;
}

}  // namespace reference
