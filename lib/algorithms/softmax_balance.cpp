#include "algorithms/softmax_balance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/math.hpp"

namespace kvbench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kCoinMargin = 0.01;

void center_keys(MatrixD& keys) {
  const Index nb = keys.rows();
  for (Index t = 0; t < keys.cols(); ++t) {
    double sum = 0.0;
    for (Index i = 0; i < nb; ++i) {
      sum += keys.row(i)[t];
    }
    const double mean = sum / static_cast<double>(nb);
    for (Index i = 0; i < nb; ++i) {
      keys.row(i)[t] -= mean;
    }
  }
}

// log of w^2 (|v|^2 + bias): what a diagonal entry has beside its exponential.
double log_value(double weight, double square, double bias) {
  const double x = square + bias;
  return x > 0.0 ? std::log(x) + 2.0 * std::log(weight) : -kInfinity;
}

double square_norm(const double* x, Index n) {
  double sum = 0.0;
  for (Index t = 0; t < n; ++t) {
    sum = std::fma(x[t], x[t], sum);
  }
  return sum;
}

// Unclamped P(+1) of a token. `sum` * exp(`shift`) is y_j; `log_r2` = log R^2, `log_own` = log
// G_jj.
double probability_of_plus(const WalkOptions& o, double sum, double shift, double log_r2,
                           double log_own, double theory_c, bool first) {
  if (o.step == Step::repo && first) {
    return 1.0;
  }
  if (sum == 0.0 || (o.gamma == 0.0 && o.step != Step::theory && o.step != Step::greedy)) {
    return 0.5;
  }
  switch (o.step) {
    case Step::theory: return 0.5 - scaled_exp(sum, shift - log_r2) / (2.0 * theory_c);
    case Step::fixed: return 0.5 - o.gamma * scaled_exp(sum, shift - log_r2);
    case Step::self: return 0.5 - o.gamma * scaled_exp(sum, shift - log_own);
    case Step::greedy: return sum > 0.0 ? -kInfinity : kInfinity;
    case Step::repo: return 0.5 - o.gamma * scaled_exp(sum, shift);
  }
  return 0.5;
}

}  // namespace

WalkCounts& WalkCounts::operator+=(const WalkCounts& o) {
  steps += o.steps;
  failures += o.failures;
  saturated += o.saturated;
  coin += o.coin;
  return *this;
}

WalkCounts softmax_balance(MatrixD& keys, const MatrixD& values, std::span<const double> weights,
                           const WalkOptions& options, std::span<const double> uniforms,
                           std::span<std::int8_t> signs, std::span<double> probability,
                           WalkScratch& scratch) {
  const Index nb = keys.rows();
  if (options.center) {
    center_keys(keys);
  }
  transpose(keys, scratch.transposed);
  inner_products(keys, scratch.transposed, scratch.exponent, /*upper=*/true);
  transpose(values, scratch.transposed);
  inner_products(values, scratch.transposed, scratch.kernel, /*upper=*/true);

  // log R^2 over the block and log G_jj per token.
  const auto count = static_cast<std::size_t>(nb);
  scratch.norm_exponent.resize(count);
  double log_r2 = -kInfinity;
  for (Index j = 0; j < nb; ++j) {
    const auto at = static_cast<std::size_t>(j);
    scratch.norm_exponent[at] =
        options.scale * square_norm(keys.row(j), keys.cols()) +
        log_value(weights[at], square_norm(values.row(j), values.cols()), options.value_bias);
    log_r2 = std::max(log_r2, scratch.norm_exponent[at]);
  }

  // Column j's shift: the largest exponent against the tokens before it.
  scratch.shift.assign(count, -kInfinity);
  double* shift = scratch.shift.data();
  for (Index i = 0; i < nb; ++i) {
    double* e = scratch.exponent.row(i);
    for (Index j = i + 1; j < nb; ++j) {
      e[j] *= options.scale;
      shift[j] = std::max(shift[j], e[j]);
    }
  }

  // The walk, right-looking: once sign i is drawn it is added to the sums of all later tokens, so
  // that every sum runs over i ascending whatever the vector width.
  const double theory_c = 30.0 * std::log(static_cast<double>(nb) / options.failure);
  scratch.sums.assign(count, 0.0);
  double* sums = scratch.sums.data();
  WalkCounts counts;
  counts.steps = nb;
  for (Index i = 0; i < nb; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double p = probability_of_plus(options, sums[i], shift[i], log_r2,
                                         scratch.norm_exponent[at], theory_c, i == 0);
    const double clamped = std::clamp(p, 0.0, 1.0);
    // |y| > c R^2 is the same as P outside [0, 1] under the theory's step.
    counts.failures += options.step == Step::theory && (p < 0.0 || p > 1.0) ? 1 : 0;
    counts.saturated += p <= 0.0 || p >= 1.0 ? 1 : 0;
    counts.coin += std::abs(clamped - 0.5) < kCoinMargin ? 1 : 0;
    if (!probability.empty()) {
      probability[at] = clamped;
    }
    const std::int8_t sign = uniforms[at] < clamped ? std::int8_t{1} : std::int8_t{-1};
    signs[at] = sign;

    const double* e = scratch.exponent.row(i);
    const double* inner = scratch.kernel.row(i);
    const double signed_weight = static_cast<double>(sign) * weights[at];
#pragma omp simd
    for (Index j = i + 1; j < nb; ++j) {
      const double value = (inner[j] + options.value_bias) * weights[static_cast<std::size_t>(j)];
      sums[j] = std::fma(exp_shared(e[j] - shift[j]) * value, signed_weight, sums[j]);
    }
  }
  return counts;
}

}  // namespace kvbench
