#include "reference/matching.hpp"

#include <algorithm>
#include <cmath>

namespace reference {

Reference reference(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                    Index end) {
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

Rows columns(const Rows& rows, const std::vector<Index>& places) {
  Rows out;
  for (const Vec& row : rows) {
    out.emplace_back();
    for (const Index j : places) {
      out.back().push_back(row[j]);
    }
  }
  return out;
}

Rows weighted_softmax(const Rows& exponential, const Vec& w) {
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

Rows product(const Rows& a, const Rows& b) {
  Rows out;
  for (const Vec& row : a) {
    Vec sum(b.front().size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t t = 0; t < sum.size(); ++t) {
        sum[t] += row[i] * b[i][t];
      }
    }
    out.push_back(sum);
  }
  return out;
}

}  // namespace reference
