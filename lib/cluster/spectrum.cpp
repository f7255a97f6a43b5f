#include "cluster/spectrum.hpp"

#include <numeric>

#include "cluster/pca.hpp"

namespace kvbench {

Spectrum spectrum(const RowSet& rows, Index width) {
  const std::vector<double> variances = principal_components(rows, width).variance;
  const double sum = std::accumulate(variances.begin(), variances.end(), 0.0);
  Spectrum out;
  if (!(sum > 0.0)) {
    return out;
  }
  double squares = 0.0;
  double largest = 0.0;
  for (const double v : variances) {
    squares += v * v;
    if (largest < kSpectrumShare * sum) {
      largest += v;
      ++out.dims_90;
    }
  }
  out.participation = sum * sum / squares;
  out.largest_share = variances.front() / sum;
  return out;
}

}  // namespace kvbench
