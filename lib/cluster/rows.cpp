#include "cluster/rows.hpp"

#include <algorithm>
#include <cmath>

#include "attention/device_rows.hpp"

namespace kvbench {

std::vector<double> row_norms(MatrixView rows, const DeviceRows* device) {
  if (device != nullptr) {
    return device->norms();
  }
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(rows.rows));
  for (Index i = 0; i < rows.rows; ++i) {
    double sum = 0.0;
    for (const float x : rows.row_span(i)) {
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
    out.push_back(std::sqrt(sum));
  }
  return out;
}

std::vector<Index> spaced_tokens(Index n, Index count, std::span<const Index> always) {
  const Index spaced = count == 0 ? n : std::min(count, n);
  std::vector<Index> out(always.begin(), always.end());
  for (Index i = 0; i < spaced; ++i) {
    out.push_back(i * n / spaced);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace kvbench
