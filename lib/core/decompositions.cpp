#include "core/decompositions.hpp"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <utility>

namespace kvbench {

LeadingSvd leading_svd(Eigen::MatrixXd& x, Index rank) {
  const Eigen::HouseholderQR<Eigen::Ref<Eigen::MatrixXd>> qr(x);  // in place
  const Index small = std::min(x.rows(), x.cols());
  const Eigen::MatrixXd upper = qr.matrixQR().topRows(small).triangularView<Eigen::Upper>();
  const Eigen::BDCSVD<Eigen::MatrixXd> svd(upper, Eigen::ComputeThinU | Eigen::ComputeThinV);
  Eigen::MatrixXd u = Eigen::MatrixXd::Zero(x.rows(), rank);
  u.topRows(small) = svd.matrixU().leftCols(rank);
  u.applyOnTheLeft(qr.householderQ().setLength(small));
  return {std::move(u), svd.singularValues().head(rank), svd.matrixV().leftCols(rank)};
}

SymmetricEigen symmetric_eigen(const Eigen::MatrixXd& x) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(x);
  return {solver.eigenvalues(), solver.eigenvectors()};
}

void least_squares(const Eigen::MatrixXd& x, const Eigen::MatrixXd& right,
                   Eigen::Map<RowMajorMatrix> z) {
  z = x.completeOrthogonalDecomposition().solve(right);
}

}  // namespace kvbench
