// Slow reference of expected-attention: the definition with every matrix written out.
#pragma once

#include "reference/bounded_fit.hpp"
#include "reference/clusterability.hpp"
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

/// x before its rotation at `position`, without assuming what the inverse rotation is.
inline Vec before_rotation(const Vec& x, Index position, const kvbench::Matrix& cos,
                           const kvbench::Matrix& sin, bool half) {
  return eliminate(rotation(cos, sin, position, x.size(), half), x);
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
      rows.push_back(cos == nullptr ? stored : before_rotation(stored, j, *cos, *sin, half));
    }
    Vec mean = row_mean(rows);
    Rows spread = covariance(rows);
    if (cos != nullptr) {
      mean = product({mean}, transposed(mean_rotation))[0];
      spread = product(mean_rotation, product(spread, transposed(mean_rotation)));
    }
    Vec logits;
    for (const Index i : tokens) {
      const Vec& k = keys[i];
      logits.push_back(s * dot(mean, k) + s * s * dot(k, product({k}, spread)[0]) / 2);
    }
    per_head.push_back(softmax(logits));
  }
  Vec out = reduced(per_head, reduce);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Vec& v = values[tokens[i]];
    out[i] *= std::sqrt(dot(v, v));
  }
  return out;
}

}  // namespace reference
