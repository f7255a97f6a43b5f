#include "metrics/error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvbench {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// std::max drops a NaN on one side.
double max_or_nan(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
}

}  // namespace

double relative_size(double a, double b) {
  if (b == 0.0) {
    return a == 0.0 ? 0.0 : (std::isnan(a) ? kNan : std::numeric_limits<double>::infinity());
  }
  return a / b;
}

double percentile(std::span<const double> values, double p) {
  if (std::any_of(values.begin(), values.end(), [](double x) { return std::isnan(x); })) {
    return kNan;
  }
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = at - static_cast<double>(below);
  // inf - inf is NaN, and a share of 0 needs no neighbour.
  return share == 0.0 || sorted[below] == sorted[above]
             ? sorted[below]
             : sorted[below] + share * (sorted[above] - sorted[below]);
}

double query_error(std::span<const double> a, std::span<const double> z) {
  double moved = 0.0;
  double exact = 0.0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    moved += (z[c] - a[c]) * (z[c] - a[c]);
    exact += a[c] * a[c];
  }
  return relative_size(std::sqrt(moved), std::sqrt(exact));
}

ErrorFigures error_figures(const ExactAttention& truth, const ValueNorms& norms, const MatrixD& z,
                           std::span<const double> log_denominator) {
  const Index m = truth.output.rows();
  const Index dv = truth.output.cols();
  ErrorFigures out;
  std::vector<double> per_query;
  double moved_total = 0.0;
  double exact_total = 0.0;
  for (Index j = 0; j < m; ++j) {
    const auto at = static_cast<std::size_t>(j);
    double moved = 0.0;
    double exact = 0.0;
    double estimate = 0.0;
    double dot = 0.0;
    for (Index c = 0; c < dv; ++c) {
      const double a = truth.output.row(j)[c];
      const double b = z.row(j)[c];
      moved += (b - a) * (b - a);
      exact += a * a;
      estimate += b * b;
      dot += a * b;
    }
    moved_total += moved;
    exact_total += exact;
    moved = std::sqrt(moved);
    per_query.push_back(relative_size(moved, std::sqrt(exact)));
    out.infinite += std::isinf(per_query.back()) ? 1 : 0;
    out.eps_fro =
        max_or_nan(out.eps_fro, relative_size(moved, truth.p_norm[at] * norms.frobenius[at]));
    out.eps_op =
        max_or_nan(out.eps_op, relative_size(moved, truth.p_norm[at] * norms.spectral[at]));
    out.log_z_error += std::abs(log_denominator[at] - truth.log_z[at]);
    const double lengths = std::sqrt(exact) * std::sqrt(estimate);
    out.cosine += std::isnan(estimate) ? kNan
                  : lengths > 0.0      ? dot / lengths
                  : exact == estimate  ? 1.0
                                       : 0.0;
  }
  const auto count = static_cast<double>(m);
  out.rel_error = relative_size(std::sqrt(moved_total), std::sqrt(exact_total));
  for (const double x : per_query) {
    out.rel_error_mean += x / count;
    out.rel_error_max = max_or_nan(out.rel_error_max, x);
  }
  out.rel_error_p50 = percentile(per_query, 0.50);
  out.rel_error_p95 = percentile(per_query, 0.95);
  out.log_z_error /= count;
  out.cosine /= count;
  return out;
}

}  // namespace kvbench
