#include "algorithms/shared/adaptive_sample.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "attention/scores.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

// Standard error that one draw of n terms >= 0 leaves in the sum of `known` and these terms,
// relative to its estimate.
double relative_deviation(double known, std::span<const double> drawn, double n) {
  const auto count = static_cast<double>(drawn.size());
  double mean = 0.0;
  for (const double x : drawn) {
    mean += x / count;
  }
  double square = 0.0;
  for (const double x : drawn) {
    square += (x - mean) * (x - mean);
  }
  return square > 0.0 ? std::sqrt(square / (count - 1.0)) * n / (known + n * mean) : 0.0;
}

}  // namespace

double upper_quantile(double delta) {
  double low = 0.0;
  double high = 40.0;
  for (double middle = 20.0; low < middle && middle < high; middle = low + (high - low) / 2) {
    (0.5 * std::erfc(middle / std::numbers::sqrt2) > delta ? low : high) = middle;
  }
  return low;
}

AdaptiveSample::AdaptiveSample(const SampleRules& rules, std::span<const double> logits,
                               double sink_logit, std::vector<bool> exact, RngStream draws)
    : rules_(rules), exact_(std::move(exact)), draws_(draws) {
  std::vector<double> own;
  for (const Index i : rules.tokens) {
    own.push_back(logits[i]);
  }
  for (const Index place : top_indices(own, rules.heavy)) {
    exact_[rules.tokens[place]] = true;
  }
  const double shift = std::max(sink_logit, *std::ranges::max_element(logits));
  double known = exp_shared(sink_logit - shift);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    known += exact_[i] ? exp_shared(logits[i] - shift) : 0.0;
  }
  std::vector<double> drawn(rules.base);
  std::ranges::generate(drawn, [&] { return exp_shared(logits[draw(draws_)] - shift); });
  deviation_ = rules.z * relative_deviation(known, drawn, static_cast<double>(rules.sampled()));
}

Index AdaptiveSample::size(double epsilon) const {
  const double root = std::min(1e6, deviation_ / epsilon);  // its square is an Index
  return std::min(rules_.sampled(), std::max(rules_.base, static_cast<Index>(root * root)));
}

Index AdaptiveSample::draw(RngStream& from) const {
  for (;;) {
    const Index token = rules_.tokens[from.next_below(rules_.tokens.size())];
    if (!is_exact(token)) {
      return token;
    }
  }
}

std::vector<std::uint32_t> AdaptiveSample::times(Index count) const {
  std::vector<std::uint32_t> out(exact_.size(), 0);
  RngStream draws = draws_;
  for (Index i = 0; i < count; ++i) {
    ++out[draw(draws)];
  }
  return out;
}

std::vector<Index> AdaptiveSample::first_draws() const {
  std::vector<Index> out;
  std::vector<bool> taken(exact_.size(), false);
  RngStream draws = draws_;
  for (Index i = 0; i < rules_.sampled(); ++i) {
    const Index token = draw(draws);
    if (!taken[token]) {
      taken[token] = true;
      out.push_back(i);
    }
  }
  return out;
}

}  // namespace kvbench
