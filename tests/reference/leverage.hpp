// Slow references of leverage, compactor, curdkv and criticalkv, from their definitions.
#pragma once

#include "reference/expected_attention.hpp"

namespace reference {

/// Keys of `tokens` before their rotation by cos, sin [p, pairs]; `half`: channels t and t + pairs
/// turn together, else 2 t and 2 t + 1.
inline Rows unrotated(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                      const kvbench::Matrix& cos, const kvbench::Matrix& sin, bool half) {
  Rows out = rows_at(head.k, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    out[i] = before_rotation(out[i], tokens[i], cos, sin, half);
  }
  return out;
}

/// x' (X'X + ridge)^-1 x of each row of X: `keys` less their mean, times phi [d][columns] where
/// that is not empty. By elimination.
inline Vec leverage(const Rows& keys, const Rows& phi, Real ridge) {
  Rows x = centred(keys, row_mean(keys));
  x = phi.empty() ? x : product(x, phi);
  Rows normal = gram(x);
  const std::size_t w = normal.size();
  for (std::size_t a = 0; a < w; ++a) {
    normal[a][a] += ridge;
  }
  Rows inverse;
  for (std::size_t a = 0; a < w; ++a) {
    Vec unit(w, 0);
    unit[a] = 1;
    inverse.push_back(eliminate(normal, unit));
  }
  Vec out;
  for (const Vec& row : x) {
    Real sum = 0;
    for (std::size_t a = 0; a < w; ++a) {
      sum += row[a] * dot(inverse[a], row);
    }
    out.push_back(sum);
  }
  return out;
}

/// compactor's attention of `tokens`: chunks filled up with zero keys and queries, every logit
/// written out; queries at positions outside [begin, end) are no queries.
inline Vec chunk_attention(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                           Index begin, Index end, Index chunk, ReferenceReduce reduce) {
  const Rows keys = rows_of(head.k);
  const Rows values = rows_of(head.v);
  const auto size = static_cast<std::size_t>(chunk);
  const auto m = tokens.size();
  const std::size_t chunks = (m + size - 1) / size;
  const Vec zero(static_cast<std::size_t>(head.d()), 0);
  Rows per_head;
  for (const kvbench::Matrix& q : head.q) {
    const Rows queries = rows_of(q);
    Vec sums(chunks * size, 0);
    for (std::size_t j = 0; j < chunks * size; ++j) {
      if (j < m && (tokens[j] < begin || tokens[j] >= end)) {
        continue;
      }
      const Vec query = j < m ? queries[tokens[j] - head.q_start()] : zero;
      const std::size_t first = j / size * size;
      Vec logits;
      for (std::size_t i = first; i < first + size; ++i) {
        logits.push_back(dot(query, i < m ? keys[tokens[i]] : zero));
      }
      const Vec p = softmax(logits);
      for (std::size_t i = 0; i < size; ++i) {
        sums[first + i] += p[i];
      }
    }
    per_head.push_back(sums);
  }
  Vec heavy = reduced(per_head, reduce);
  for (std::size_t i = 0; i < m; ++i) {
    heavy[i] *= length(values[tokens[i]]);
  }
  Vec out;
  for (std::size_t i = 0; i < m; ++i) {
    Real sum = 0;
    for (std::size_t j = i == 0 ? 0 : i - 1; j < m && j <= i + 1; ++j) {
      sum += heavy[j];
    }
    out.push_back(sum / 3);
  }
  return out;
}

/// z-scores over all rows together, n - 1; a deviation below 1e-6 counts as 1e-6.
inline Rows z_scores(const Rows& rows) {
  Vec all;
  for (const Vec& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  const auto count = static_cast<Real>(all.size());
  Real mean = 0;
  for (const Real x : all) {
    mean += x / count;
  }
  Real variance = 0;
  for (const Real x : all) {
    variance += (x - mean) * (x - mean) / (count - 1);
  }
  Rows out = rows;
  for (Vec& row : out) {
    for (Real& x : row) {
      x = (x - mean) / std::max<Real>(std::sqrt(variance), 1e-6L);
    }
  }
  return out;
}

/// curdkv's scores of `tokens`, those of the first ones above all others.
inline Vec curdkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index window,
                  Index first) {
  Vec out(tokens.size(), 1);
  for (const kvbench::Matrix* m : {&head.k, &head.v}) {
    const Rows rows = rows_of(*m);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Real sum = 0;
      for (std::size_t j = 0; j < tokens.size(); ++j) {
        const auto size = static_cast<std::size_t>(window);
        if (j / size == i / size) {
          const Vec& near = rows[tokens[j]];
          sum += dot(near, near);
        }
      }
      const Vec& own = rows[tokens[i]];
      out[i] *= sum > 0 ? dot(own, own) / sum : 0;
    }
  }
  for (Index i = 0; i < std::min(first, static_cast<Index>(tokens.size())); ++i) {
    out[i] = 2;  // products of shares are at most 1
  }
  return out;
}

/// |W_h v|_1 of `tokens`, mean over the group: w [hidden, group dv].
inline Vec output_norms(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                        const kvbench::Matrix& w) {
  const Rows values = rows_of(head.v);
  const Rows weights = rows_of(w);
  Vec out;
  for (const Index i : tokens) {
    const Vec& v = values[i];
    Real sum = 0;
    for (std::size_t h = 0; h < head.q.size(); ++h) {
      for (const Vec& row : weights) {
        Real x = 0;
        for (std::size_t t = 0; t < v.size(); ++t) {
          x += row[h * v.size() + t] * v[t];
        }
        sum += std::abs(x);
      }
    }
    out.push_back(sum / static_cast<Real>(head.q.size()));
  }
  return out;
}

}  // namespace reference
