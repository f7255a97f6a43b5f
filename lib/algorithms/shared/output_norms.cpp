#include "algorithms/shared/output_norms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention/inner_products.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kValuesAtOnce = 256;

double norm_of(const double* x, Index n, OutputNorm norm) {
  double sum = 0.0;
  for (Index i = 0; i < n; ++i) {
    sum += norm == OutputNorm::one ? std::abs(x[i]) : x[i] * x[i];
  }
  return norm == OutputNorm::one ? sum : std::sqrt(sum);
}

}  // namespace

std::vector<std::vector<double>> output_norms(const Task& task, std::span<const Index> tokens,
                                              OutputNorm norm) {
  const Index dv = task.head.dv();
  const Matrix& w = *task.o_proj;
  std::vector<std::vector<double>> out;
  MatrixD head_t(dv, w.rows()), values, products;
  for (Index h = 0; h < task.head.group(); ++h) {
    for (Index r = 0; r < w.rows(); ++r) {
      for (Index t = 0; t < dv; ++t) {
        head_t.row(t)[r] = static_cast<double>(w.row(r)[h * dv + t]);
      }
    }
    std::vector<double>& norms = out.emplace_back();
    norms.reserve(tokens.size());
    for (std::size_t b = 0; b < tokens.size(); b += kValuesAtOnce) {
      const std::size_t count = std::min(kValuesAtOnce, tokens.size() - b);
      gather_rows(task.head.v, tokens.subspan(b, count), values);
      inner_products(values, head_t, products);
      for (std::size_t i = 0; i < count; ++i) {
        norms.push_back(norm_of(products.row(static_cast<Index>(i)), w.rows(), norm));
      }
    }
  }
  return out;
}

void require_projection(const char* method, bool there) {
  if (!there) {
    throw InputError(
        fmt::format("{}: needs the layer's output projection (o_proj), which this layer "
                    "does not have; expected a trace dumped with it",
                    method));
  }
}

}  // namespace kvbench
