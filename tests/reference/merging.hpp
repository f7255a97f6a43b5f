// What count-merge, d2o, cam and value-merge do with evicted tokens, from their definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>

#include "reference/reference.hpp"

namespace reference {

/// A kept token after merging.
struct Merged {
  Vec k, v;
  Real w = 1;
  bool changed = false;
};

inline bool has(const std::vector<Index>& set, Index i) {
  return std::find(set.begin(), set.end(), i) != set.end();
}

/// Of `kept`, the token whose key has the largest cosine to that of token i; ties to the first.
inline Index most_like(const Rows& k, Index i, const std::vector<Index>& kept) {
  return *std::ranges::max_element(kept, {}, [&](Index j) { return cosine(k[i], k[j]); });
}

/// `count` tokens as h2o keeps them: the heaviest of the older ones, and the most recent.
inline std::vector<Index> heavy_and_recent(const std::vector<Index>& tokens, const Vec& scores,
                                           Index count, Index heavy) {
  std::vector<Index> out;
  const std::size_t older = tokens.size() - static_cast<std::size_t>(count - heavy);
  std::vector<std::pair<Real, Index>> ranked;
  for (std::size_t i = 0; i < older; ++i) {
    ranked.emplace_back(-scores[i], tokens[i]);
  }
  std::sort(ranked.begin(), ranked.end());
  for (Index i = 0; i < heavy; ++i) {
    out.push_back(ranked[i].second);
  }
  for (std::size_t i = older; i < tokens.size(); ++i) {
    out.push_back(tokens[i]);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Every token that is not kept goes to the kept key of largest cosine; means and counts.
inline std::map<Index, Merged> count_merge(const kvbench::KvHead& head,
                                           const std::vector<Index>& tokens,
                                           const std::vector<Index>& kept) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  std::map<Index, Merged> out;
  for (const Index i : kept) {
    const auto at = static_cast<std::size_t>(i);
    out[i] = {k[at], v[at], 1, false};
  }
  for (const Index i : tokens) {
    if (has(kept, i)) {
      continue;
    }
    const auto at = static_cast<std::size_t>(i);
    Merged& m = out[most_like(k, i, kept)];
    for (std::size_t t = 0; t < m.k.size(); ++t) {
      m.k[t] = (m.k[t] * m.w + k[at][t]) / (m.w + 1);
    }
    for (std::size_t t = 0; t < m.v.size(); ++t) {
      m.v[t] = (m.v[t] * m.w + v[at][t]) / (m.w + 1);
    }
    m.w += 1;
    m.changed = true;
  }
  return out;
}

/// Tokens that are not kept, in order: those whose largest cosine u to a kept key is not below a
/// running mean of u are merged into that key's token by weights e^u, its own e.
inline std::map<Index, Merged> d2o(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                                   const std::vector<Index>& kept, Real ema) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  std::map<Index, std::vector<std::pair<Index, Real>>> taken;  // by kept token: evicted token, u
  bool started = false;
  Real tau = 0;
  for (const Index i : tokens) {
    if (has(kept, i) || kept.empty()) {
      continue;
    }
    const Index best = most_like(k, i, kept);
    const Real u = cosine(k[i], k[best]);
    const Real before = started ? tau : u;
    tau = started ? ema * u + (1 - ema) * tau : u;
    started = true;
    if (!(u < before)) {
      taken[best].emplace_back(i, u);
    }
  }
  const auto merged = [](const Rows& rows, Index own,
                         const std::vector<std::pair<Index, Real>>& others) {
    Vec out;
    for (std::size_t t = 0; t < rows[0].size(); ++t) {
      Real above = std::exp(Real{1}) * rows[own][t];
      Real below = std::exp(Real{1});
      for (const auto& [i, u] : others) {
        above += std::exp(u) * rows[i][t];
        below += std::exp(u);
      }
      out.push_back(above / below);
    }
    return out;
  };
  std::map<Index, Merged> out;
  for (const Index i : kept) {
    out[i] = {merged(k, i, taken[i]), merged(v, i, taken[i]), 1, !taken[i].empty()};
  }
  return out;
}

/// cam with `draw[i]` the uniform of token i; `scores` one per entry of `tokens`.
inline std::map<Index, Merged> cam(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                                   const Vec& scores, const std::vector<Index>& kept, Index merge,
                                   const std::vector<double>& draw) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  std::map<Index, Merged> out;
  std::map<Index, Real> acc;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    acc[tokens[i]] = scores[i];
  }
  for (const Index i : kept) {
    out[i] = {k[i], v[i], 1, false};
  }
  for (const Index i : tokens) {
    if (has(kept, i)) {
      continue;
    }
    std::vector<Index> behind;
    Real sum = 0;
    for (const Index j : kept) {
      if (j > i && static_cast<Index>(behind.size()) < merge) {
        behind.push_back(j);
        sum += acc[j];
      }
    }
    if (behind.empty()) {
      continue;
    }
    const auto width = static_cast<Real>(behind.size());
    const Real p = sum > 0 ? std::min<Real>(1, acc[i] / (sum / width)) : (acc[i] > 0 ? 1 : 0);
    if (static_cast<Real>(draw[i]) >= p) {
      continue;
    }
    for (const Index j : behind) {
      for (std::size_t t = 0; t < out[j].v.size(); ++t) {
        out[j].v[t] += v[i][t] / width;
      }
      out[j].changed = true;
    }
  }
  return out;
}

/// Every token that is not kept goes to the kept key of largest cosine c: values become
/// (v + sum w_i v_i) / (1 + sum w_i), w_i = max(0, c) |v_i| / (|v_i| + |v| + 1e-6); keys stay.
inline std::map<Index, Merged> value_merge(const kvbench::KvHead& head,
                                           const std::vector<Index>& tokens,
                                           const std::vector<Index>& kept) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  const auto norm = [&](Index i) { return std::sqrt(dot(v[i], v[i])); };
  std::map<Index, Index> nearest;
  for (const Index i : tokens) {
    if (!kept.empty() && !has(kept, i)) {
      nearest[i] = most_like(k, i, kept);
    }
  }
  std::map<Index, Merged> out;
  for (const Index j : kept) {
    const auto at = static_cast<std::size_t>(j);
    Vec above = v[at];
    Real below = 1;
    for (const auto& [i, to] : nearest) {
      if (to != j) {
        continue;
      }
      const Real w = std::max<Real>(0, cosine(k[i], k[at])) * norm(i) / (norm(i) + norm(j) + 1e-6L);
      for (std::size_t t = 0; t < above.size(); ++t) {
        above[t] += w * v[i][t];
      }
      below += w;
    }
    for (Real& x : above) {
      x /= below;
    }
    out[j] = {k[at], above, 1, below > 1};
  }
  return out;
}

}  // namespace reference
