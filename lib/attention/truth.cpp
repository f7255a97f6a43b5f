#include "attention/truth.hpp"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/query_block.hpp"

namespace kvbench {
namespace {

template <class T>
ExactAttention exact_attention_in(const KvHead& head, Index g, std::span<const Index> positions,
                                  int threads) {
  const Index n = head.n();
  const auto m = static_cast<Index>(positions.size());
  const Index blocks = (m + kTruthBlock - 1) / kTruthBlock;
  ExactAttention out;
  out.output = MatrixD(m, head.dv());
  out.log_z.resize(m);
  out.p_norm.resize(m);
  out.mass.assign(n, 0.0);
  out.noticed.assign(n, 0);
  // Column sums per block of queries, added up in block order: the same bits for any thread count.
  MatrixD block_mass(blocks, n);
  std::vector<std::vector<std::uint8_t>> block_noticed(blocks, std::vector<std::uint8_t>(n, 0));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    QueryBlock<T> block;
    const Index r0 = b * kTruthBlock;
    const Index rows = std::min(kTruthBlock, m - r0);
    block.attend(head, g, positions.subspan(r0, static_cast<std::size_t>(rows)),
                 out.output.row(r0));
    block.add_columns(block_mass.row(b), block_noticed[b].data(), kAmnesiaThreshold);
    for (Index r = 0; r < rows; ++r) {
      const double z = block.total(r);
      const auto at = static_cast<std::size_t>(r0 + r);
      out.log_z[at] = block.shift(r) + std::log(z);
      out.p_norm[at] = std::sqrt(block.square(r)) / z;
      for (Index c = 0; c < head.dv(); ++c) {
        out.output.row(r0 + r)[c] /= z;
      }
    }
  }
  for (Index b = 0; b < blocks; ++b) {
    for (Index i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out.mass[at] += block_mass.row(b)[i];
      out.noticed[at] |= block_noticed[b][at];
    }
  }
  for (double& x : out.mass) {
    x /= static_cast<double>(m);
  }
  return out;
}

template <class T>
MatrixD exact_probabilities_in(const KvHead& head, Index g, std::span<const Index> positions) {
  const auto m = static_cast<Index>(positions.size());
  MatrixD out(m, head.n());
  QueryBlock<T> block;
  for (Index r0 = 0; r0 < m; r0 += kTruthBlock) {
    const Index rows = std::min(kTruthBlock, m - r0);
    block.attend(head, g, positions.subspan(r0, static_cast<std::size_t>(rows)), nullptr);
    for (Index r = 0; r < rows; ++r) {
      for (Index i = 0; i <= positions[r0 + r]; ++i) {
        out.row(r0 + r)[i] = static_cast<double>(block.weight(i, r)) / block.total(r);
      }
    }
  }
  return out;
}

using Gram = Eigen::MatrixXd;

constexpr Index kNormBlock = 32;  // queries whose norms one thread follows

// Largest eigenvalues of Gram matrices that grow row by row. From the last one's eigenvector a few
// steps of Lanczos find the next; where they do not suffice, all eigenvalues are computed.
class LargestEigenvalue {
 public:
  // `gram`: the last call's plus a positive semidefinite matrix of rank one.
  double operator()(const Gram& gram) {
    if (!follow(gram)) {
      solver_.compute(gram);
      value_ = solver_.eigenvalues().tail<1>()(0);
      vector_ = solver_.eigenvectors().rightCols<1>();
    }
    return value_;
  }

 private:
  static constexpr Index kSteps = 24;
  static constexpr Index kStepsAtOnce = 4;
  static constexpr double kTolerance = 1e-14;  // relative; the full solver's own error

  // The growth has rank one, so the second eigenvalue is at most the first of before: from a Ritz
  // value above that, the first is no further than residual^2 / distance (Kato and Temple).
  bool follow(const Gram& gram) {
    const Index d = gram.rows();
    const Index steps = std::min(kSteps, d);
    if (vector_.size() == 0 || !(value_ > 0.0)) {
      return false;
    }
    const double second = value_ * (1.0 + 4.0 * kTolerance);
    Eigen::MatrixXd basis(d, steps);
    Eigen::VectorXd diagonal(steps);
    Eigen::VectorXd beside(steps);
    basis.col(0) = vector_;
    Eigen::VectorXd next(d);
    for (Index k = 0; k < steps; ++k) {
      next.noalias() = gram * basis.col(k);
      diagonal(k) = basis.col(k).dot(next);
      for (int again = 0; again < 2; ++again) {  // once leaves rounding of the first behind
        const Eigen::VectorXd along = basis.leftCols(k + 1).transpose() * next;
        next.noalias() -= basis.leftCols(k + 1) * along;
      }
      beside(k) = next.norm();
      const bool last = k + 1 == steps || beside(k) <= kTolerance * value_;
      if (last || (k + 1) % kStepsAtOnce == 0) {
        small_.computeFromTridiagonal(diagonal.head(k + 1), beside.head(k));
        const double ritz = small_.eigenvalues()(k);
        const double residual = beside(k) * std::abs(small_.eigenvectors()(k, k));
        if (ritz > second && residual * residual <= kTolerance * ritz * (ritz - second)) {
          value_ = ritz;
          vector_ = (basis.leftCols(k + 1) * small_.eigenvectors().col(k)).normalized();
          return true;
        }
      }
      if (last) {
        return false;
      }
      basis.col(k + 1) = next / beside(k);
    }
    return false;
  }

  double value_ = 0.0;
  Eigen::VectorXd vector_;
  Eigen::SelfAdjointEigenSolver<Gram> solver_;
  Eigen::SelfAdjointEigenSolver<Gram> small_;
};

}  // namespace

ExactAttention exact_attention(const KvHead& head, Index g, Index m, int threads) {
  std::vector<Index> last(m);
  std::iota(last.begin(), last.end(), head.n() - m);
  return exact_attention(head, g, last, threads);
}

ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                               int threads) {
  return head.precision == Precision::float32
             ? exact_attention_in<float>(head, g, positions, threads)
             : exact_attention_in<double>(head, g, positions, threads);
}

MatrixD exact_probabilities(const KvHead& head, Index g, std::span<const Index> positions) {
  return head.precision == Precision::float32 ? exact_probabilities_in<float>(head, g, positions)
                                              : exact_probabilities_in<double>(head, g, positions);
}

ValueNorms value_norms(const KvHead& head, Index m, int threads) {
  const Index n = head.n();
  const Index dv = head.dv();
  const Index before = n - m;
  MatrixD seen_by_all(dv, dv);
  add_gram(head.v.view().slice({0, before}), head.precision, seen_by_all);
  const Gram base = Eigen::Map<const Gram>(seen_by_all.data(), dv, dv);
  ValueNorms out;
  out.frobenius.resize(m);
  out.spectral.resize(m);
  const Index blocks = (m + kNormBlock - 1) / kNormBlock;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    Gram gram = base;
    const auto add = [&](Index position) {
      const Eigen::VectorXd v =
          Eigen::Map<const Eigen::VectorXf>(head.v.row(position), dv).cast<double>();
      gram.noalias() += v * v.transpose();
    };
    for (Index r = 0; r < b * kNormBlock; ++r) {
      add(before + r);
    }
    LargestEigenvalue largest_eigenvalue;
    for (Index r = b * kNormBlock; r < std::min(m, (b + 1) * kNormBlock); ++r) {
      add(before + r);
      const auto at = static_cast<std::size_t>(r);
      out.frobenius[at] = std::sqrt(gram.trace());
      out.spectral[at] = std::sqrt(std::max(0.0, largest_eigenvalue(gram)));
    }
  }
  return out;
}

}  // namespace kvbench
