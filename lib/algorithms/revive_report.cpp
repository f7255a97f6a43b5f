#include "algorithms/revive_report.hpp"

#include <fmt/format.h>

namespace kvbench {
namespace {

// Sums of squares of x - y, channel by channel, so that the order of summation is fixed.
void add_squares(const float* x, const float* y, std::vector<double>& sums) {
  for (std::size_t t = 0; t < sums.size(); ++t) {
    const double e = static_cast<double>(x[t]) - (y == nullptr ? 0.0 : static_cast<double>(y[t]));
    sums[t] += e * e;
  }
}

double mean_of(const std::vector<double>& sums, std::size_t rows) {
  double total = 0.0;
  for (const double s : sums) {
    total += s;
  }
  return rows > 0 ? total / (static_cast<double>(rows) * static_cast<double>(sums.size())) : 0.0;
}

}  // namespace

ReviveErrors revive_errors(const KvHead& head, std::span<const Index> tokens, const Matrix& k,
                           const Matrix& v, Index first, Index step) {
  std::vector<double> k_error(static_cast<std::size_t>(head.d()), 0.0), k_square(k_error);
  std::vector<double> v_error(static_cast<std::size_t>(head.dv()), 0.0), v_square(v_error);
  Index row = first;
  for (const Index i : tokens) {
    add_squares(k.row(row), head.k.row(i), k_error);
    add_squares(v.row(row), head.v.row(i), v_error);
    add_squares(head.k.row(i), nullptr, k_square);
    add_squares(head.v.row(i), nullptr, v_square);
    row += step;
  }
  return {mean_of(k_error, tokens.size()), mean_of(k_square, tokens.size()),
          mean_of(v_error, tokens.size()), mean_of(v_square, tokens.size())};
}

std::string revive_number(double x) {
  return fmt::format("{:.6g}", x);
}

std::vector<std::pair<std::string, std::string>> sketch_figures(const ReviveErrors& e, Index vague,
                                                                const SketchShape& sketch) {
  const Index total = sketch.rows * sketch.cells;
  return {{"cells", fmt::format("{}", total)},
          {"k_error", revive_number(e.k_error)},
          {"k_bound", revive_number(sketch_variance_bound(vague, total, e.k_square))},
          {"v_error", revive_number(e.v_error)},
          {"v_bound", revive_number(sketch_variance_bound(vague, total, e.v_square))}};
}

}  // namespace kvbench
