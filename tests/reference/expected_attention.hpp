// Slow reference of expected-attention: the definition with every matrix written out.
#pragma once

#include <cmath>

#include "core/types.hpp"
#include "reference/bounded_fit.hpp"
#include "reference/selection.hpp"

namespace reference {

/// The d x d rotation to one position.
inline Rows rotation(const kvbench::Matrix& cos, const kvbench::Matrix& sin, Index position,
                     std::size_t d, bool half) {
  Rows r(d, Vec(d, 0));
  for (std::size_t c = 0; c < d; ++c) {
    r[c][c] = 1;
  }
  const auto pairs = static_cast<std::size_t>(cos.cols());
  for (std::size_t t = 0; t < pairs; ++t) {
    const std::size_t a = half ? t : 2 * t;
    const std::size_t b = half ? t + pairs : 2 * t + 1;
    const Real c = cos.row(position)[t];
    const Real s = sin.row(position)[t];
    r[a][a] = c;
    r[a][b] = -s;
    r[b][a] = s;
    r[b][b] = c;
  }
  return r;
}

inline Vec times(const Rows& m, const Vec& x) {
  Vec out;
  for (const Vec& row : m) {
    out.push_back(dot(row, x));
  }
  return out;
}

/// Scores of `tokens`: per query head the softmax over them of the log of the mean of exp(s<q,k>)
/// over the Gaussian of the queries at positions [begin, end), un-rotated by cos, sin [p, pairs]
/// and turned by the mean rotation to positions [end, end + future) (tables null: as stored, no
/// rotation); mean over the group, times |v|.
inline Vec expected_attention(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                              Index begin, Index end, const kvbench::Matrix* cos,
                              const kvbench::Matrix* sin, bool half, Index future,
                              ReferenceReduce reduce = ReferenceReduce::mean) {
  const auto d = static_cast<std::size_t>(head.d());
  const Rows keys = rows_of(head.k);
  const Rows values = rows_of(head.v);
  const Real s = head.scale;
  Rows mean_rotation(d, Vec(d, 0));
  for (Index p = end; cos != nullptr && p < end + future; ++p) {
    const Rows r = rotation(*cos, *sin, p, d, half);
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = 0; b < d; ++b) {
        mean_rotation[a][b] += r[a][b] / static_cast<Real>(future);
      }
    }
  }
  Rows per_head;
  for (const kvbench::Matrix& q : head.q) {
    const Rows all = rows_of(q);
    Rows rows;
    for (Index j = begin; j < end; ++j) {
      const Vec& stored = all[j - head.q_start()];
      // The inverse rotation, without assuming what it is.
      rows.push_back(cos == nullptr ? stored : eliminate(rotation(*cos, *sin, j, d, half), stored));
    }
    const auto count = static_cast<Real>(rows.empty() ? 1 : rows.size());
    Vec mean(d, 0);
    Rows covariance(d, Vec(d, 0));
    for (const Vec& x : rows) {
      for (std::size_t t = 0; t < d; ++t) {
        mean[t] += x[t] / count;
      }
    }
    for (const Vec& x : rows) {
      for (std::size_t a = 0; a < d; ++a) {
        for (std::size_t b = 0; b < d; ++b) {
          covariance[a][b] += (x[a] - mean[a]) * (x[b] - mean[b]) / count;
        }
      }
    }
    if (cos != nullptr) {
      mean = times(mean_rotation, mean);
      Rows left;  // R C, row by row: C is symmetric, so its rows are its columns
      for (std::size_t b = 0; b < d; ++b) {
        left.push_back(times(mean_rotation, covariance[b]));
      }
      Rows turned(d, Vec(d, 0));
      for (std::size_t a = 0; a < d; ++a) {
        for (std::size_t b = 0; b < d; ++b) {
          for (std::size_t t = 0; t < d; ++t) {
            turned[a][b] += mean_rotation[a][t] * left[t][b];
          }
        }
      }
      covariance = turned;
    }
    Vec e;
    Real z = 0;
    for (const Index i : tokens) {
      const Vec& k = keys[i];
      e.push_back(std::exp(s * dot(mean, k) + s * s * dot(k, times(covariance, k)) / 2));
      z += e.back();
    }
    for (Real& x : e) {
      x /= z;
    }
    per_head.push_back(e);
  }
  Vec out = reduced(per_head, reduce);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Vec& v = values[tokens[i]];
    out[i] *= std::sqrt(dot(v, v));
  }
  return out;
}

}  // namespace reference
