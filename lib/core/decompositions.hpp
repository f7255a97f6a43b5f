// Eigen's decompositions in one source, since each takes as long to compile as ten other files.
#pragma once

#include <Eigen/Core>

#include "core/types.hpp"

namespace kvbench {

using RowMajorMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The largest singular values of x and their vectors: x ~ u diag(s) v'. `s` descends.
struct LeadingSvd {
  Eigen::MatrixXd u;  ///< [rows, rank]
  Eigen::VectorXd s;  ///< [rank]
  Eigen::MatrixXd v;  ///< [cols, rank]
};

/// By Eigen::BDCSVD of R of a Householder QR, which overwrites `x`. rank <= min(rows, cols).
LeadingSvd leading_svd(Eigen::MatrixXd& x, Index rank);

/// x = vectors diag(values) vectors'. `values` ascend.
struct SymmetricEigen {
  Eigen::VectorXd values;   ///< [n]
  Eigen::MatrixXd vectors;  ///< [n, n]
};

/// Of a symmetric matrix [n, n], whose lower triangle is read.
SymmetricEigen symmetric_eigen(const Eigen::MatrixXd& x);

/// The shortest Z [cols, right.cols()] of the smallest |x Z - right|, by complete orthogonal
/// decomposition.
void least_squares(const Eigen::MatrixXd& x, const Eigen::MatrixXd& right,
                   Eigen::Map<RowMajorMatrix> z);

}  // namespace kvbench
