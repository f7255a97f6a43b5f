// The largest eigenvalue of a symmetric positive semidefinite matrix that grows row by row. All
// sums have one order, so the bits do not depend on the instruction set; a library's would.
#pragma once

#include "attention/inner_products.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Follows the largest eigenvalue of matrices that each add a positive semidefinite one of rank one
/// to the last. From the last eigenvector a few steps of Lanczos find the next; where they do not
/// suffice, and for the first matrix, the whole matrix is made tridiagonal (Householder). The same
/// value for the same matrix to 1e-14 relative.
/// Lanczos' end: Golub, Van Loan, "Matrix Computations", section 10.1; the bound: Kato and Temple.
class LargestEigenvalue {
 public:
  /// `gram` [d, d], symmetric, d >= 1, finite. Time O(d^2), at worst O(d^3).
  double operator()(const MatrixD& gram);

 private:
  bool follow(const MatrixD& gram);
  void find(const MatrixD& gram);
  double largest_of_tridiagonal(Index size);
  void tridiagonal_vector(Index size, double value);

  double value_ = 0.0;
  AlignedVector<double> vector_;             // of unit length; empty: none known
  AlignedVector<double> diagonal_, beside_;  // of the tridiagonal matrix
  AlignedVector<double> small_, pivots_;     // its eigenvector, and scratch
  AlignedVector<double> next_;
  MatrixD basis_, reduced_;
};

}  // namespace kvbench
