// Attention matching by its definition: every row of the reference attention in long double.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"

namespace reference {

/// Of the queries at positions [begin, end) of all query heads, heads one after another: each
/// against all of `tokens`, whatever its position.
struct Reference {
  Rows softmax;      ///< [R, m]
  Rows exponential;  ///< [R, m]: divided by the row's largest
  Vec mass;          ///< [R]: sums of those
  Rows output;       ///< [R, dv]
};

inline Reference reference(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                           Index begin, Index end) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  Reference out;
  for (const kvbench::Matrix& queries : head.q) {
    const Rows q = rows_of(queries);
    for (Index j = begin; j < end; ++j) {
      Vec logits;
      for (const Index i : tokens) {
        logits.push_back(static_cast<Real>(head.scale) * dot(q[j - head.q_start()], k[i]));
      }
      const Real top = *std::max_element(logits.begin(), logits.end());
      Vec e;
      Real sum = 0;
      for (const Real x : logits) {
        e.push_back(std::exp(x - top));
        sum += e.back();
      }
      Vec p;
      Vec o(static_cast<std::size_t>(head.dv()), 0);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        p.push_back(e[i] / sum);
        for (std::size_t t = 0; t < o.size(); ++t) {
          o[t] += p[i] * v[tokens[i]][t];
        }
      }
      out.softmax.push_back(p);
      out.exponential.push_back(e);
      out.mass.push_back(sum);
      out.output.push_back(o);
    }
  }
  return out;
}

/// Columns `places` of rows.
inline Rows columns(const Rows& rows, const std::vector<Index>& places) {
  Rows out;
  for (const Vec& row : rows) {
    out.emplace_back();
    for (const Index j : places) {
      out.back().push_back(row[j]);
    }
  }
  return out;
}

/// Rows of `exponential` times w, each divided by its sum.
inline Rows weighted_softmax(const Rows& exponential, const Vec& w) {
  Rows out;
  for (const Vec& row : exponential) {
    Real sum = 0;
    for (std::size_t j = 0; j < w.size(); ++j) {
      sum += row[j] * w[j];
    }
    out.emplace_back();
    for (std::size_t j = 0; j < w.size(); ++j) {
      out.back().push_back(row[j] * w[j] / sum);
    }
  }
  return out;
}

}  // namespace reference
