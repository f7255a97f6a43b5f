// Small KV heads for tests, made of normal numbers from a seeded standard generator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/float16.hpp"
#include "core/types.hpp"

namespace kvbench {

struct HeadShape {
  Index n = 64, nq = 64, d = 8, dv = 8, group = 2;
  double key_norm = 3.0;    ///< typical |k|
  double value_norm = 1.0;  ///< typical |v|
  double key_offset = 0.0;  ///< added to every channel of every key
  DType dtype = DType::float32;
};

inline Matrix normal_matrix(Index rows, Index cols, double norm, std::mt19937_64& generator) {
  std::normal_distribution<double> normal(0.0, norm / std::sqrt(static_cast<double>(cols)));
  Matrix m(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    m.data()[i] = static_cast<float>(normal(generator));
  }
  return m;
}

inline KvHead make_head(const HeadShape& s, unsigned seed) {
  std::mt19937_64 generator(seed);
  KvHead head;
  head.k = normal_matrix(s.n, s.d, s.key_norm, generator);
  for (Index i = 0; i < s.n * s.d; ++i) {
    head.k.data()[i] += static_cast<float>(s.key_offset);
  }
  head.v = normal_matrix(s.n, s.dv, s.value_norm, generator);
  for (Index g = 0; g < s.group; ++g) {
    head.q.push_back(normal_matrix(s.nq, s.d, 3.0, generator));
  }
  head.scale = 1.0 / std::sqrt(static_cast<double>(s.d));
  head.dtype = s.dtype;
  return head;
}

/// Keys with duplicates (some scaled, some negated) and zero keys among them.
inline Matrix odd_keys(Index n, Index d, unsigned seed) {
  std::mt19937_64 generator(seed);
  Matrix k = normal_matrix(n, d, 3.0, generator);
  for (Index i = 1; i < n; ++i) {
    const auto from = static_cast<Index>(generator() % static_cast<std::uint64_t>(i));
    const auto dice = generator() % 8;
    if (dice < 4) {
      const float factor = dice == 0 ? 0.0F : dice == 1 ? -1.0F : dice == 2 ? 3.0F : 1.0F;
      for (Index t = 0; t < d; ++t) {
        k.row(i)[t] = factor * k.row(from)[t];
      }
    }
  }
  return k;
}

/// A head of one query with such keys.
inline KvHead odd_head(Index n, Index d, unsigned seed) {
  HeadShape shape{.n = n, .nq = 1, .d = d};
  KvHead head = make_head(shape, seed);
  head.k = odd_keys(n, d, seed);
  return head;
}

/// Keys and values rounded to the head's element type, as a trace stores them.
inline KvHead make_rounded_head(const HeadShape& s, unsigned seed) {
  KvHead head = make_head(s, seed);
  round_to(s.dtype, head.k.data(), s.n * s.d);
  round_to(s.dtype, head.v.data(), s.n * s.dv);
  return head;
}

/// offset + {0 .. values - 1}: sums of squares are exact in float64; with little to choose from,
/// many ties and equal rows.
inline Matrix lattice(Index rows, Index cols, int values, std::mt19937_64& generator,
                      double offset = 0.0) {
  Matrix m(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    m.data()[i] = static_cast<float>(
        offset + static_cast<double>(generator() % static_cast<unsigned>(values)));
  }
  return m;
}

/// scale * <key, query>, term by term.
inline double slow_logit(const KvHead& head, const float* key, const float* query) {
  double dot = 0.0;
  for (Index t = 0; t < head.d(); ++t) {
    dot += static_cast<double>(key[t]) * static_cast<double>(query[t]);
  }
  return head.scale * dot;
}

/// All rows become the first.
inline void repeat_first_row(Matrix& m) {
  for (Index i = 1; i < m.rows(); ++i) {
    std::copy_n(m.row(0), m.cols(), m.row(i));
  }
}

inline std::vector<Index> positions(Index begin, Index end) {
  std::vector<Index> out;
  for (Index i = begin; i < end; ++i) {
    out.push_back(i);
  }
  return out;
}

inline bool same_bits(const Matrix& a, const Matrix& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.rows() * a.cols() == 0 ||
          std::memcmp(a.data(), b.data(),
                      static_cast<std::size_t>(a.rows() * a.cols()) * sizeof(float)) == 0);
}

}  // namespace kvbench
