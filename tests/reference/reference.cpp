#include "reference/reference.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace reference {

Rows rows_at(kvbench::MatrixView m, const std::vector<Index>& places) {
  Rows out;
  for (const Index i : places) {
    out.emplace_back(m.data + i * m.cols, m.data + (i + 1) * m.cols);
  }
  return out;
}

Rows rows_of(kvbench::MatrixView m) {
  std::vector<Index> all(static_cast<std::size_t>(m.rows));
  std::iota(all.begin(), all.end(), Index{0});
  return rows_at(m, all);
}

Real dot(const Vec& a, const Vec& b) {
  Real s = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    s += a[t] * b[t];
  }
  return s;
}

Real length(const Vec& x) {
  return std::sqrt(dot(x, x));
}

Real cosine(const Vec& a, const Vec& b) {
  const Real norms = length(a) * length(b);
  return norms > 0 ? dot(a, b) / norms : 0;
}

Rows product(const Rows& a, const Rows& b) {
  Rows out(a.size(), Vec(b[0].size(), 0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t t = 0; t < b.size(); ++t) {
      for (std::size_t j = 0; j < b[0].size(); ++j) {
        out[i][j] += a[i][t] * b[t][j];
      }
    }
  }
  return out;
}

Rows transposed(const Rows& x) {
  Rows out(x.empty() ? 0 : x[0].size());
  for (const Vec& row : x) {
    for (std::size_t t = 0; t < row.size(); ++t) {
      out[t].push_back(row[t]);
    }
  }
  return out;
}

Rows gram(const Rows& x) {
  return product(transposed(x), x);
}

Vec row_mean(const Rows& x) {
  Vec out;
  for (const Vec& column : transposed(x)) {
    out.push_back(0);
    for (const Real e : column) {
      out.back() += e / static_cast<Real>(x.size());
    }
  }
  return out;
}

Rows centred(Rows x, const Vec& mean) {
  for (Vec& row : x) {
    for (std::size_t t = 0; t < row.size(); ++t) {
      row[t] -= mean[t];
    }
  }
  return x;
}

Vec softmax(const Vec& logits) {
  const Real shift = *std::max_element(logits.begin(), logits.end());
  Vec out;
  Real sum = 0;
  for (const Real x : logits) {
    out.push_back(std::exp(x - shift));
    sum += out.back();
  }
  for (Real& x : out) {
    x /= sum;
  }
  return out;
}

Attention attention(const kvbench::KvHead& head, Index g, Index position) {
  const Rows k = rows_of(head.k);
  const Rows v = rows_of(head.v);
  const Vec q = rows_of(head.q[g])[position - (head.n() - head.nq())];
  Attention out;
  out.p.assign(k.size(), 0);
  Real z = 0;
  for (Index i = 0; i <= position; ++i) {
    if (head.window > 0 && position - i >= head.window) {
      continue;
    }
    const auto at = static_cast<std::size_t>(i);
    out.p[at] = std::exp(static_cast<Real>(head.scale) * dot(k[at], q));
    z += out.p[at];
  }
  if (!head.sink_logit.empty()) {
    z += std::exp(static_cast<Real>(head.sink_logit[g]));
  }
  out.log_z = std::log(z);
  out.out.assign(head.dv(), 0);
  for (std::size_t i = 0; i < k.size(); ++i) {
    out.p[i] /= z;
    for (std::size_t t = 0; t < out.out.size(); ++t) {
      out.out[t] += out.p[i] * v[i][t];
    }
  }
  return out;
}

Estimate estimate(const Vec& q, Real scale, const std::vector<Weighted>& numerator,
                  const std::vector<Weighted>& denominator) {
  Estimate out;
  out.z.assign(numerator.empty() ? 0 : numerator[0].v.size(), 0);
  Real den = 0;
  for (const Weighted& e : denominator) {
    den += e.w * std::exp(scale * dot(e.k, q));
  }
  for (const Weighted& e : numerator) {
    for (std::size_t t = 0; t < out.z.size(); ++t) {
      out.z[t] += e.w * std::exp(scale * dot(e.k, q)) * e.v[t] / den;
    }
  }
  out.log_denominator = std::log(den);
  return out;
}

std::vector<Weighted> entries(const Rows& k, const Rows& v, const std::vector<float>& w) {
  std::vector<Weighted> out;
  for (std::size_t i = 0; i < k.size(); ++i) {
    out.push_back({k[i], v.empty() ? Vec() : v[i], w.empty() ? 1.0F : w[i]});
  }
  return out;
}

Real relative_error(const Rows& queries, Real scale, const std::vector<Weighted>& exact,
                    const std::vector<Weighted>& numerator,
                    const std::vector<Weighted>& denominator) {
  Real error = 0;
  Real norm = 0;
  for (const Vec& q : queries) {
    const Vec a = estimate(q, scale, exact, exact).z;
    const Vec b = estimate(q, scale, numerator, denominator).z;
    for (std::size_t t = 0; t < a.size(); ++t) {
      error += (b[t] - a[t]) * (b[t] - a[t]);
      norm += a[t] * a[t];
    }
  }
  return std::sqrt(error / norm);
}

WalkResult walk(Rows keys, const Rows& values, const Vec& weights, const WalkReference& o,
                const std::vector<double>& uniforms) {
  const std::size_t n = keys.size();
  if (o.center) {
    Vec mean(keys[0].size(), 0);
    for (const Vec& k : keys) {
      for (std::size_t t = 0; t < mean.size(); ++t) {
        mean[t] += k[t] / static_cast<Real>(std::max(n, o.padded));
      }
    }
    for (Vec& k : keys) {
      for (std::size_t t = 0; t < mean.size(); ++t) {
        k[t] -= mean[t];
      }
    }
  }
  const auto kernel = [&](std::size_t i, std::size_t j) {
    const Real weight = weights[i] * weights[j];
    const Real value = dot(values[i], values[j]);
    return std::exp(o.scale * dot(keys[i], keys[j])) *
           (o.plain_bias ? weight * value + o.bias : weight * (value + o.bias));
  };
  Real r2 = 0;
  for (std::size_t j = 0; j < n; ++j) {
    r2 = std::max(r2, kernel(j, j));
  }
  const Real c = 30 * std::log(static_cast<Real>(n) / o.failure);
  WalkResult out;
  for (std::size_t j = 0; j < n; ++j) {
    Real y = 0;
    for (std::size_t i = 0; i < j; ++i) {
      y += kernel(i, j) * out.sign[i];
    }
    Real p = 0.5L;
    if (o.step == ReferenceStep::repo && j == 0) {
      p = 1;
    } else if (y != 0) {
      switch (o.step) {
        case ReferenceStep::theory:
          p -= y / (2 * c * r2);
          out.failures += std::abs(y) > c * r2 ? 1 : 0;
          break;
        case ReferenceStep::fixed: p -= o.gamma * y / r2; break;
        case ReferenceStep::self: p -= o.gamma * y / kernel(j, j); break;
        case ReferenceStep::greedy: p = y > 0 ? 0 : 1; break;
        case ReferenceStep::repo: p -= o.gamma * y; break;
      }
    }
    p = std::min<Real>(1, std::max<Real>(0, p));
    out.p.push_back(p);
    out.sign.push_back(uniforms[j] < static_cast<double>(p) ? 1 : -1);
  }
  return out;
}

std::vector<Index> top(const std::vector<double>& scores, Index count) {
  return top(Vec(scores.begin(), scores.end()), count);
}

std::vector<Index> top(const Vec& scores, Index count) {
  std::vector<std::pair<Real, Index>> all;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    all.emplace_back(-scores[i], static_cast<Index>(i));
  }
  std::sort(all.begin(), all.end());
  std::vector<Index> out;
  for (Index i = 0; i < count; ++i) {
    out.push_back(all[i].second);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Real percentile(std::vector<double> values, Real p) {
  std::sort(values.begin(), values.end());
  const Real h = p * static_cast<Real>(values.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(h));
  const auto high = static_cast<std::size_t>(std::ceil(h));
  return values[low] + (h - std::floor(h)) * (static_cast<Real>(values[high]) - values[low]);
}

}  // namespace reference
