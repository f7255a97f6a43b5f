#include "attention/truth.hpp"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/lanes.hpp"

namespace kvbench {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMap =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// Keys are widened a slab at a time: the whole head in float64 would double its memory.
constexpr Index kKeySlab = 1024;

FloatMap map(MatrixView m) {
  return {m.data, m.rows, m.cols};
}

// Logits of the queries at `positions` against all n keys; unseen ones -inf.
void logits(const KvHead& head, Index g, std::span<const Index> positions, RowMajor& out) {
  const MatrixView q = head.q[g];
  const auto rows = static_cast<Index>(positions.size());
  RowMajor scaled(rows, head.d());
  for (Index r = 0; r < rows; ++r) {
    const Index at = positions[r] - head.q_start();
    scaled.row(r) = map(q.slice({at, at + 1})).cast<double>() * head.scale;
  }
  const Index n = head.n();
  out.resize(rows, n);
  for (Index k0 = 0; k0 < n; k0 += kKeySlab) {
    const Index count = std::min(kKeySlab, n - k0);
    const RowMajor keys = map(head.k.view().slice({k0, k0 + count})).cast<double>();
    out.middleCols(k0, count).noalias() = scaled * keys.transpose();
  }
  for (Index r = 0; r < rows; ++r) {
    for (Index i = positions[r] + 1; i < n; ++i) {
      out(r, i) = -std::numeric_limits<double>::infinity();
    }
  }
}

// Row r of logits becomes probabilities; returns the log of their sum before.
double softmax_row(RowMajor& p, Index r) {
  double* row = p.row(r).data();
  const Index n = p.cols();
  const double shift = largest(row, n);
  const double z = exponentials(row, n, shift);
  p.row(r) /= z;
  return shift + std::log(z);
}

using Gram = Eigen::MatrixXd;

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
  const Index n = head.n();
  const auto m = static_cast<Index>(positions.size());
  const Index blocks = (m + kQueryBlock - 1) / kQueryBlock;
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
    const Index r0 = b * kQueryBlock;
    const Index rows = std::min(kQueryBlock, m - r0);
    RowMajor p;
    logits(head, g, positions.subspan(r0, static_cast<std::size_t>(rows)), p);
    double* mass = block_mass.row(b);
    std::uint8_t* noticed = block_noticed[b].data();
    for (Index r = 0; r < rows; ++r) {
      const double* row = p.row(r).data();
      const auto at = static_cast<std::size_t>(r0 + r);
      out.log_z[at] = softmax_row(p, r);
      out.p_norm[at] = p.row(r).norm();
      for (Index i = 0; i < n; ++i) {
        mass[i] += row[i];
        noticed[i] = static_cast<std::uint8_t>(noticed[i] | (row[i] > kAmnesiaThreshold ? 1 : 0));
      }
    }
    Eigen::Map<RowMajor> a(out.output.row(r0), rows, head.dv());
    a.setZero();
    for (Index k0 = 0; k0 < n; k0 += kKeySlab) {
      const Index count = std::min(kKeySlab, n - k0);
      const RowMajor values = map(head.v.view().slice({k0, k0 + count})).cast<double>();
      a.noalias() += p.middleCols(k0, count) * values;
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

MatrixD exact_probabilities(const KvHead& head, Index g, std::span<const Index> positions) {
  RowMajor p;
  logits(head, g, positions, p);
  MatrixD out(p.rows(), p.cols());
  for (Index r = 0; r < p.rows(); ++r) {
    softmax_row(p, r);
    std::copy_n(p.row(r).data(), p.cols(), out.row(r));
  }
  return out;
}

ValueNorms value_norms(const KvHead& head, Index m, int threads) {
  const Index n = head.n();
  const Index dv = head.dv();
  const Index before = n - m;
  Gram base = Gram::Zero(dv, dv);
  for (Index k0 = 0; k0 < before; k0 += kKeySlab) {
    const Index count = std::min(kKeySlab, before - k0);
    const RowMajor values = map(head.v.view().slice({k0, k0 + count})).cast<double>();
    base.noalias() += values.transpose() * values;
  }
  ValueNorms out;
  out.frobenius.resize(m);
  out.spectral.resize(m);
  const Index blocks = (m + kQueryBlock - 1) / kQueryBlock;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    Gram gram = base;
    const auto add = [&](Index position) {
      const Eigen::VectorXd v =
          map(head.v.view().slice({position, position + 1})).row(0).cast<double>();
      gram.noalias() += v * v.transpose();
    };
    for (Index r = 0; r < b * kQueryBlock; ++r) {
      add(before + r);
    }
    LargestEigenvalue largest_eigenvalue;
    for (Index r = b * kQueryBlock; r < std::min(m, (b + 1) * kQueryBlock); ++r) {
      add(before + r);
      const auto at = static_cast<std::size_t>(r);
      out.frobenius[at] = std::sqrt(gram.trace());
      out.spectral[at] = std::sqrt(std::max(0.0, largest_eigenvalue(gram)));
    }
  }
  return out;
}

}  // namespace kvbench
