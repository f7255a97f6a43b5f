#include "attention/value_norms.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/inner_products.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr Index kNormBlock = 32;  // consecutive queries of one thread
constexpr Index kSteps = 24;      // of Lanczos
constexpr Index kStepsAtOnce = 4;
constexpr double kTolerance = 1e-14;  // relative; the error of the tridiagonal form
// Of values whose largest is within, sums of kTokenSlab squares neither overflow in float32 nor
// lose digits to denormal numbers.
constexpr float kLeastOfSquares = 0x1p-50F;
constexpr float kMostOfSquares = 0x1p59F;

void scale(double factor, Index n, double* x) {
#pragma omp simd
  for (Index t = 0; t < n; ++t) {
    x[t] *= factor;
  }
}

// y = rows and columns [first, d) of the symmetric m, times x; x and y start at `first`.
void multiply(const MatrixD& m, Index first, const double* x, double* y) {
  const Index n = m.cols() - first;
  std::fill_n(y, n, 0.0);
  for (Index i = 0; i < n; ++i) {
    add(x[i], m.row(first + i) + first, n, y);
  }
}

// The largest eigenvalue of symmetric positive semidefinite matrices, each the last one plus a
// matrix of rank one, less such matrices. A few Lanczos steps from the last eigenvector find it
// (Golub, Van Loan, "Matrix Computations", section 10.1; the bound is that of Kato and Temple).
// Where they do not suffice, and for the first matrix, Householder reflections make the matrix
// tridiagonal. A matrix has the same value either way to 1e-14 relative. Sums have one order, so
// the bits do not depend on the instruction set; a library's would.
class LargestEigenvalue {
 public:
  // `gram` [d, d], symmetric, d >= 1, finite. Time O(d^2), at worst O(d^3).
  double operator()(const MatrixD& gram);

 private:
  bool follow(const MatrixD& gram);
  void find(const MatrixD& gram);
  double largest_of_tridiagonal(Index size);
  void tridiagonal_vector(Index size, double value);

  double value_ = 0.0;
  AlignedVector<double> vector_;             // of unit length; empty: unknown
  AlignedVector<double> diagonal_, beside_;  // of the tridiagonal matrix
  AlignedVector<double> small_, pivots_;     // its eigenvector, and scratch
  AlignedVector<double> next_;
  MatrixD basis_, reduced_;
};

// gram += v v' over the values in `which`; empty if its end is not after its begin.
void add_values(MatrixView values, Range which, MatrixD& gram) {
  for (Index i = which.begin; i < which.end; ++i) {
    const float* v = values.row(i);
    for (Index t = 0; t < gram.rows(); ++t) {
      double* row = gram.row(t);
      const auto x = static_cast<double>(v[t]);
#pragma omp simd
      for (Index u = 0; u < gram.cols(); ++u) {
        row[u] = std::fma(x, static_cast<double>(v[u]), row[u]);
      }
    }
  }
}

// The same over all values; products in T if it holds their squares.
template <class T>
void add_all_values(MatrixView values, MatrixD& gram) {
  float largest = 0.0F;
  for (Index i = 0; i < values.rows * values.cols; ++i) {
    largest = std::max(largest, std::abs(values.data[i]));
  }
  if (kLeastOfSquares <= largest && largest <= kMostOfSquares) {
    add_gram<T>(values, gram);
  } else {
    add_gram<double>(values, gram);
  }
}

double LargestEigenvalue::operator()(const MatrixD& gram) {
  if (!follow(gram)) {
    find(gram);
  }
  return value_;
}

// What was added has rank one, so the second eigenvalue is at most the previous first, whatever was
// subtracted. The first is within residual^2 / distance of a Ritz value above that (Kato and
// Temple).
bool LargestEigenvalue::follow(const MatrixD& gram) {
  const Index d = gram.rows();
  if (static_cast<Index>(vector_.size()) != d) {
    return false;
  }
  const Index steps = std::min(kSteps, d);
  const double second = value_ * (1.0 + 4.0 * kTolerance);
  basis_.resize(steps, d);
  diagonal_.resize(steps);
  beside_.resize(steps);
  next_.resize(d);
  double* next = next_.data();
  std::ranges::copy(vector_, basis_.row(0));
  for (Index k = 0; k < steps; ++k) {
    multiply(gram, 0, basis_.row(k), next);
    diagonal_[k] = dot(basis_.row(k), next, d);
    for (int again = 0; again < 2; ++again) {  // the second pass removes rounding
      for (Index i = 0; i <= k; ++i) {
        add(-dot(basis_.row(i), next, d), basis_.row(i), d, next);
      }
    }
    beside_[k] = std::sqrt(dot(next, next, d));
    const bool last = k + 1 == steps || beside_[k] <= kTolerance * value_;
    if (last || (k + 1) % kStepsAtOnce == 0) {
      const double ritz = largest_of_tridiagonal(k + 1);
      tridiagonal_vector(k + 1, ritz);
      const double residual = beside_[k] * small_[k];
      if (ritz > second && residual * residual <= kTolerance * ritz * (ritz - second)) {
        value_ = ritz;
        std::ranges::fill(vector_, 0.0);
        for (Index i = 0; i <= k; ++i) {
          add(small_[i], basis_.row(i), d, vector_.data());
        }
        scale(1.0 / std::sqrt(dot(vector_.data(), vector_.data(), d)), d, vector_.data());
        return true;
      }
    }
    if (last) {
      return false;
    }
    std::copy_n(next, d, basis_.row(k + 1));
    scale(1.0 / beside_[k], d, basis_.row(k + 1));
  }
  return false;
}

// Householder: reflections I - 2 u u' (unit u, kept in basis_) make the matrix tridiagonal.
void LargestEigenvalue::find(const MatrixD& gram) {
  const Index d = gram.rows();
  reduced_ = gram;
  basis_.resize(d, d);
  diagonal_.resize(d);
  beside_.resize(d);
  next_.resize(d);
  for (Index k = 0; k < d; ++k) {
    diagonal_[k] = reduced_.row(k)[k];
    const Index first = k + 1;
    const Index n = d - first;
    double* u = basis_.row(k);
    std::copy_n(reduced_.row(k) + first, n, u);
    const double length = std::sqrt(dot(u, u, n));
    beside_[k] = 0.0;
    if (length > 0.0) {
      beside_[k] = u[0] > 0.0 ? -length : length;
      u[0] -= beside_[k];
      scale(1.0 / std::sqrt(dot(u, u, n)), n, u);
      double* w = next_.data();  // 2 (A u - u u'A u): then A - u w' - w u' is the reflected matrix
      multiply(reduced_, first, u, w);
      add(-dot(u, w, n), u, n, w);
      scale(2.0, n, w);
      for (Index i = 0; i < n; ++i) {
        double* row = reduced_.row(first + i) + first;
        add(-u[i], w, n, row);
        add(-w[i], u, n, row);
      }
    } else {
      std::fill_n(u, n, 0.0);
    }
  }
  value_ = largest_of_tridiagonal(d);
  vector_.clear();
  if (value_ > 0.0) {
    tridiagonal_vector(d, value_);
    vector_.assign(small_.begin(), small_.begin() + d);
    for (Index k = d - 2; k >= 0; --k) {
      double* x = vector_.data() + k + 1;
      add(-2.0 * dot(basis_.row(k), x, d - k - 1), basis_.row(k), d - k - 1, x);
    }
  }
}

// Bisection: all pivots of T - x are negative exactly where x is above every eigenvalue. Returns
// the smallest such x found.
double LargestEigenvalue::largest_of_tridiagonal(Index size) {
  const auto is_above = [&](double x) {
    double pivot = diagonal_[0] - x;
    for (Index i = 1; i < size && pivot < 0.0; ++i) {
      pivot = diagonal_[i] - x - beside_[i - 1] * beside_[i - 1] / pivot;
    }
    return pivot < 0.0;
  };
  double low = diagonal_[0];
  double high = 0.0;
  for (Index i = 0; i < size; ++i) {  // Gershgorin's circles
    const double left = i > 0 ? std::abs(beside_[i - 1]) : 0.0;
    const double right = i + 1 < size ? std::abs(beside_[i]) : 0.0;
    low = std::max(low, diagonal_[i]);
    high = std::max(high, diagonal_[i] + left + right);
  }
  high *= 1.0 + 64.0 * std::numeric_limits<double>::epsilon();
  for (double middle = 0.5 * (low + high); low < middle && middle < high;
       middle = 0.5 * (low + high)) {
    (is_above(middle) ? high : low) = middle;
  }
  return high;
}

// small_ [size] = the unit eigenvector of an eigenvalue at or just below `value`, by two steps of
// inverse iteration with the negative pivots of T - value.
void LargestEigenvalue::tridiagonal_vector(Index size, double value) {
  pivots_.resize(size);
  small_.assign(size, 1.0);
  pivots_[0] = diagonal_[0] - value;
  for (Index i = 1; i < size; ++i) {
    pivots_[i] = diagonal_[i] - value - beside_[i - 1] * beside_[i - 1] / pivots_[i - 1];
  }
  for (int step = 0; step < 2; ++step) {
    for (Index i = 1; i < size; ++i) {
      small_[i] -= beside_[i - 1] / pivots_[i - 1] * small_[i - 1];
    }
    small_[size - 1] /= pivots_[size - 1];
    for (Index i = size - 2; i >= 0; --i) {
      small_[i] = (small_[i] - beside_[i] * small_[i + 1]) / pivots_[i];
    }
    // Nearly singular: lengths grow by at most 1e16, far below overflow.
    scale(1.0 / std::sqrt(dot(small_.data(), small_.data(), size)), size, small_.data());
  }
}

}  // namespace

ValueNorms value_norms(const KvHead& head, Index m, int threads) {
  const Index before = head.n() - m;
  const MatrixView values = head.v.view();
  // No value is ever taken out of a sum: a large one would leave its rounding behind. So queries
  // share the sum over the tokens that all of them see, [first, before), and add the others.
  const Index first = std::min(before, head.visible(head.n() - 1).begin);
  MatrixD seen_by_all(head.dv(), head.dv());
  with_element(head.precision, [&](auto element) {
    add_all_values<decltype(element)>(values.slice({first, before}), seen_by_all);
  });
  ValueNorms out;
  out.frobenius.resize(m);
  out.spectral.resize(m);
  const Index blocks = (m + kNormBlock - 1) / kNormBlock;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index b = 0; b < blocks; ++b) {
    const Index begin = before + b * kNormBlock;
    const Index end = std::min(head.n(), begin + kNormBlock);
    // Tokens that the block's queries see, up to the current one.
    const Index seen_by_block = head.visible(end - 1).begin;
    MatrixD shared = seen_by_all;
    add_values(values, {seen_by_block, first}, shared);
    add_values(values, {std::max(seen_by_block, before), begin}, shared);
    MatrixD beside;
    LargestEigenvalue largest_eigenvalue;
    for (Index position = begin; position < end; ++position) {
      add_values(values, {std::max(seen_by_block, position), position + 1}, shared);
      const MatrixD* gram = &shared;
      if (const Index oldest = head.visible(position).begin; oldest < seen_by_block) {
        beside = shared;
        add_values(values, {oldest, std::min(seen_by_block, position + 1)}, beside);
        gram = &beside;
      }
      double trace = 0.0;
      for (Index t = 0; t < head.dv(); ++t) {
        trace += gram->row(t)[t];
      }
      const auto at = static_cast<std::size_t>(position - before);
      out.frobenius[at] = std::sqrt(trace);
      out.spectral[at] = std::sqrt(largest_eigenvalue(*gram));
    }
  }
  return out;
}

}  // namespace kvbench
