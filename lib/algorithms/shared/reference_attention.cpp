#include "algorithms/shared/reference_attention.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/math.hpp"

namespace kvbench {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

MatrixD scaled_rows(const KvHead& head, Range positions) {
  const Range held = {std::max(positions.begin, head.q_start()), std::min(positions.end, head.n())};
  MatrixD out(head.group() * held.size(), head.d());
  Index row = 0;
  for (const Matrix& q : head.q) {
    for (Index j = held.begin; j < held.end; ++j, ++row) {
      for (Index t = 0; t < head.d(); ++t) {
        out.row(row)[t] = head.scale * static_cast<double>(q.row(j - head.q_start())[t]);
      }
    }
  }
  return out;
}

MatrixD transposed_keys(const KvHead& head, std::span<const Index> tokens) {
  MatrixD keys, out;
  gather_rows(head.k, tokens, keys);
  transpose(keys, out);
  return out;
}

}  // namespace

ReferenceAttention::ReferenceAttention(const KvHead& head, std::span<const Index> tokens,
                                       Range positions, KeyScore score)
    : queries_(scaled_rows(head, positions)),
      shift_(queries_.rows()),
      mass_(queries_.rows()),
      output_(queries_.rows(), head.dv()) {
  const auto m = static_cast<Index>(tokens.size());
  if (score != KeyScore::none) {
    scores_.assign(tokens.size(), 0.0);
  }
  const MatrixD keys_t = transposed_keys(head, tokens);
  MatrixD values, block, x;
  gather_rows(head.v, tokens, values);
  for (Index begin = 0; begin < rows() && m > 0; begin += kBlock) {
    const Index count = std::min(kBlock, rows() - begin);
    block.resize(count, head.d());
    std::copy_n(queries_.row(begin), count * head.d(), block.data());
    inner_products(block, keys_t, x);
    for (Index r = 0; r < count; ++r) {
      double* row = x.row(r);
      const auto i = static_cast<std::size_t>(begin + r);
      shift_[i] = *std::max_element(row, row + m);
      for (Index j = 0; j < m; ++j) {
        row[j] = exp_shared(row[j] - shift_[i]);
      }
      double sum = 0.0;
      for (Index j = 0; j < m; ++j) {
        sum += row[j];
      }
      mass_[i] = sum;
      for (Index j = 0; j < m; ++j) {
        row[j] /= sum;
      }
      double* s = scores_.data();
      switch (score) {
        case KeyScore::none: break;
        case KeyScore::rms:
          for (Index j = 0; j < m; ++j) {
            s[j] = std::fma(row[j], row[j], s[j]);
          }
          break;
        case KeyScore::mean:
          for (Index j = 0; j < m; ++j) {
            s[j] += row[j];
          }
          break;
        case KeyScore::max:
          for (Index j = 0; j < m; ++j) {
            s[j] = std::max(s[j], row[j]);
          }
          break;
      }
    }
    Eigen::Map<Rows>(output_.row(begin), count, head.dv()).noalias() =
        Eigen::Map<const Rows>(x.data(), count, m) *
        Eigen::Map<const Rows>(values.data(), m, head.dv());
  }
  const double count = static_cast<double>(std::max<Index>(1, rows()));
  for (double& s : scores_) {
    s = score == KeyScore::max ? s : s / count;
    s = score == KeyScore::rms ? std::sqrt(s) : s;
  }
}

MatrixD ReferenceAttention::logits(const KvHead& head, std::span<const Index> kept) const {
  MatrixD out;
  inner_products(queries_, transposed_keys(head, kept), out);
  return out;
}

MatrixD ReferenceAttention::exponentials(const KvHead& head, std::span<const Index> kept) const {
  MatrixD out = logits(head, kept);
  for (Index i = 0; i < out.rows(); ++i) {
    for (Index j = 0; j < out.cols(); ++j) {
      out.row(i)[j] = exp_shared(out.row(i)[j] - shift_[i]);
    }
  }
  return out;
}

MatrixD ReferenceAttention::softmax(const KvHead& head, std::span<const Index> kept,
                                    std::span<const float> w) const {
  MatrixD out = logits(head, kept);
  for (Index i = 0; i < out.rows(); ++i) {
    double* row = out.row(i);
    double largest = -std::numeric_limits<double>::infinity();
    for (Index j = 0; j < out.cols(); ++j) {
      const auto weight = static_cast<double>(w[j]);
      row[j] = weight > 0.0 ? row[j] + std::log(weight) : -std::numeric_limits<double>::infinity();
      largest = std::max(largest, row[j]);
    }
    double sum = 0.0;
    for (Index j = 0; j < out.cols(); ++j) {
      row[j] = std::isfinite(row[j]) ? exp_shared(row[j] - largest) : 0.0;
      sum += row[j];
    }
    for (Index j = 0; j < out.cols() && sum > 0.0; ++j) {
      row[j] /= sum;
    }
  }
  return out;
}

}  // namespace kvbench
