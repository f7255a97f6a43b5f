// A solution of a least-squares problem with bounds.
#pragma once

#include <vector>

namespace kvbench {

struct BoundedFit {
  std::vector<double> w;   ///< [B], each within its bounds
  double objective = 0.0;  ///< |E w - y|^2
  double gap = 0.0;        ///< upper bound of objective - optimum, certified by the gradient
};

}  // namespace kvbench
