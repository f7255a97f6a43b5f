// Slow references of what scores with extra queries, from the definitions (docs/methods.md).
#pragma once

#include <cmath>

#include "reference/reference.hpp"

namespace reference {

/// A segment of extra queries that look back at the prompt.
struct ExtraRows {
  std::vector<Rows> q;  // [group][m][d]
  Rows k;               // [m][d], the segment's own keys
  Vec residual;         // [m]
  Index prefix = 0;     // tokens that the model had read
  Index first = 0;      // the chunk that the segment is about: [first, last)
  Index last = 0;
};

// exp(s <q, k>) of every key, over their sum.
inline Vec softmax_of(const Vec& q, const Rows& keys, Real scale) {
  Vec logits;
  for (const Vec& k : keys) {
    logits.push_back(scale * dot(q, k));
  }
  return softmax(logits);
}

inline Real output_norm(const Rows& w, const Vec& v, std::size_t g) {
  Real square = 0;
  for (const Vec& row : w) {
    Real x = 0;
    for (std::size_t t = 0; t < v.size(); ++t) {
      x += row[g * v.size() + t] * v[t];
    }
    square += x * x;
  }
  return std::sqrt(square);
}

/// KVzip: for each token the largest softmax weight from any query of a segment about it, the
/// softmax over the first min(4, first) tokens, the chunk, and the segment's keys up to the query.
/// `w` [hidden][group dv]: with KVzip+, else null.
inline Vec kvzip(const kvbench::KvHead& head, const std::vector<ExtraRows>& segments,
                 const Rows* w) {
  const Rows keys = rows_of(head.k);
  const Rows values = rows_of(head.v);
  Vec out(keys.size(), 0);
  for (const ExtraRows& s : segments) {
    for (std::size_t g = 0; g < s.q.size(); ++g) {
      for (std::size_t j = 0; j < s.k.size(); ++j) {
        Rows seen;
        std::vector<Index> token;  // -1: counts for nobody
        for (Index i = 0; i < 4 && i < s.first; ++i) {
          seen.push_back(keys[static_cast<std::size_t>(i)]);
          token.push_back(-1);
        }
        for (Index i = s.first; i < s.last; ++i) {
          seen.push_back(keys[static_cast<std::size_t>(i)]);
          token.push_back(i);
        }
        for (std::size_t i = 0; i <= j; ++i) {
          seen.push_back(s.k[i]);
          token.push_back(-1);
        }
        const Vec p = softmax_of(s.q[g][j], seen, head.scale);
        for (std::size_t i = 0; i < seen.size(); ++i) {
          if (token[i] < 0 || (w != nullptr && s.residual[j] == 0)) {
            continue;
          }
          const auto at = static_cast<std::size_t>(token[i]);
          const Real x =
              w == nullptr ? p[i] : p[i] * output_norm(*w, values[at], g) / s.residual[j];
          out[at] = x > out[at] ? x : out[at];
        }
      }
    }
  }
  return out;
}

/// [group][n]: sums of softmax weights of the last `count` queries of all segments together, each
/// over tokens [0, prefix) and its segment's keys up to itself.
inline Rows extra_sums(const kvbench::KvHead& head, const std::vector<ExtraRows>& segments,
                       Index count) {
  const Rows keys = rows_of(head.k);
  Index total = 0;
  for (const ExtraRows& s : segments) {
    total += static_cast<Index>(s.k.size());
  }
  Rows out(segments.front().q.size(), Vec(keys.size(), 0));
  Index number = 0;
  for (const ExtraRows& s : segments) {
    for (std::size_t j = 0; j < s.k.size(); ++j, ++number) {
      if (number < total - count) {
        continue;
      }
      Rows seen(keys.begin(), keys.begin() + s.prefix);
      seen.insert(seen.end(), s.k.begin(), s.k.begin() + static_cast<std::ptrdiff_t>(j) + 1);
      for (std::size_t g = 0; g < s.q.size(); ++g) {
        const Vec p = softmax_of(s.q[g][j], seen, head.scale);
        for (Index i = 0; i < s.prefix; ++i) {
          out[g][static_cast<std::size_t>(i)] += p[static_cast<std::size_t>(i)];
        }
      }
    }
  }
  return out;
}

}  // namespace reference
