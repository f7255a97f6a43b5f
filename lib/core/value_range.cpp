#include "core/value_range.hpp"

#include <algorithm>
#include <cmath>

namespace kvbench {
namespace {

constexpr double kLargest = 1e30;
constexpr double kLargestSquared = 1e15;

double largest_size(MatrixView m) {
  float out = 0.0F;
#pragma omp simd reduction(max : out)
  for (Index i = 0; i < m.rows * m.cols; ++i) {
    out = std::max(out, std::abs(m.data[i]));
  }
  return static_cast<double>(out);
}

}  // namespace

ValueRange value_range(const KvHead& head) {
  ValueRange out{largest_size(head.k), 0.0, largest_size(head.v)};
  for (const Matrix& q : head.q) {
    out.query = std::max(out.query, largest_size(q));
  }
  return out;
}

ValueRange widest(const ValueRange& a, const ValueRange& b) {
  return {std::max(a.key, b.key), std::max(a.query, b.query), std::max(a.value, b.value)};
}

bool fits_float32(const ValueRange& r, double scale, Index d) {
  return std::max(1.0, std::abs(scale)) * r.query * std::max(1.0, r.key) * static_cast<double>(d) <=
             kLargest &&
         r.key <= kLargestSquared && r.value <= kLargestSquared;
}

}  // namespace kvbench
