#include "algorithms/shared/lloyd_max.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <stdexcept>

namespace kvbench {
namespace {

constexpr int kNodes = 12;  // per panel of at most half a standard deviation

// Gauss-Legendre on [-1, 1], nodes by Newton's method.
struct GaussRule {
  std::array<double, kNodes> x{};
  std::array<double, kNodes> w{};

  GaussRule() {
    for (int i = 0; i < kNodes; ++i) {
      double z = std::cos(std::numbers::pi * (i + 0.75) / (kNodes + 0.5));
      double slope = 1.0;
      for (int round = 0; round < 100; ++round) {
        double p = 1.0;
        double before = 0.0;
        for (int j = 1; j <= kNodes; ++j) {
          const double next = ((2.0 * j - 1.0) * z * p - (j - 1.0) * before) / j;
          before = p;
          p = next;
        }
        slope = kNodes * (z * p - before) / (z * z - 1.0);
        const double step = p / slope;
        z -= step;
        if (std::abs(step) < 1e-15) {
          break;
        }
      }
      x[i] = z;
      w[i] = 2.0 / ((1.0 - z * z) * slope * slope);
    }
  }
};

// Integrals of the density over angles, x = sin(angle): cos^(d - 2) divided by its value at the
// lower angle, so that nothing underflows.
class Density {
 public:
  explicit Density(Index d) : power_(static_cast<double>(d) - 2.0) {}

  struct Cell {
    double mass = 0.0;
    double mean = 0.0;
    double at_low = 0.0;   // density of x there, same scale
    double at_high = 0.0;  // 0 at x = 1
  };

  // 0 <= low < high <= 1.
  Cell cell(double low, double high) const {
    static const GaussRule rule;
    const double begin = std::asin(low);
    const double end = high < 1.0 ? std::asin(high) : std::numbers::pi / 2.0;
    const double width = 0.5 / std::sqrt(power_ + 2.0);
    const auto panels = static_cast<Index>(std::ceil((end - begin) / width));
    const double half = 0.5 * (end - begin) / static_cast<double>(panels);
    const double start = std::log(std::cos(begin));
    double mass = 0.0;
    double moment = 0.0;
    for (Index p = 0; p < panels; ++p) {
      const double centre = begin + half * static_cast<double>(2 * p + 1);
      double part = 0.0;
      for (int i = 0; i < kNodes; ++i) {
        const double angle = centre + half * rule.x[i];
        const double f = rule.w[i] * half * relative(angle, start);
        part += f;
        moment += f * std::sin(angle);
      }
      mass += part;
      if (part < 1e-24 * mass) {
        break;  // the rest is smaller
      }
    }
    Cell out{mass, moment / mass, 1.0 / std::cos(begin), 0.0};
    if (high < 1.0) {
      out.at_high = relative(end, start) / std::cos(end);
    }
    return out;
  }

  // Initial positive levels: equal parts of the density's cube root, the optimum for many levels
  // (Panter and Dite, 1951).
  std::vector<double> start(std::size_t count) const {
    constexpr std::size_t kSteps = 1 << 14;
    std::vector<double> sums{0.0};
    const double step = std::numbers::pi / 2.0 / kSteps;
    for (std::size_t i = 0; i < kSteps; ++i) {
      const double angle = (static_cast<double>(i) + 0.5) * step;
      sums.push_back(sums.back() + std::exp((power_ + 2.0) / 3.0 * std::log(std::cos(angle))));
    }
    std::vector<double> out;
    for (std::size_t i = 0; i < count; ++i) {
      const double part = sums.back() * (static_cast<double>(i) + 0.5) / static_cast<double>(count);
      const auto after = std::ranges::upper_bound(sums, part);
      const auto place = static_cast<double>(after - sums.begin() - 1);
      const double within = (part - *(after - 1)) / (*after - *(after - 1));
      out.push_back(std::sin((place + within) * step));
    }
    return out;
  }

 private:
  double relative(double angle, double start) const {
    return power_ == 0.0 ? 1.0 : std::exp(power_ * (std::log(std::cos(angle)) - start));
  }

  double power_;
};

// Thomas algorithm, in place.
void solve(std::vector<double>& below, std::vector<double>& diagonal, std::vector<double>& above,
           std::vector<double>& right) {
  for (std::size_t i = 1; i < right.size(); ++i) {
    const double factor = below[i] / diagonal[i - 1];
    diagonal[i] -= factor * above[i - 1];
    right[i] -= factor * right[i - 1];
  }
  for (std::size_t i = right.size(); i-- > 0;) {
    const double rest = i + 1 < right.size() ? above[i] * right[i + 1] : 0.0;
    right[i] = (right[i] - rest) / diagonal[i];
  }
}

// The positive levels: Newton's method on "each level is its cell's mean".
std::vector<double> positive_levels(std::size_t count, Index d) {
  const Density density(d);
  std::vector<double> c = density.start(count);
  const double sigma = 1.0 / std::sqrt(static_cast<double>(d));
  for (int round = 0; round < 200; ++round) {
    std::vector<double> below(count), diagonal(count), above(count), rest(count);
    double largest = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const double low = i == 0 ? 0.0 : 0.5 * (c[i - 1] + c[i]);
      const double high = i + 1 == count ? 1.0 : 0.5 * (c[i] + c[i + 1]);
      const Density::Cell cell = density.cell(low, high);
      const double by_low = i == 0 ? 0.0 : 0.5 * cell.at_low * (cell.mean - low) / cell.mass;
      const double by_high = 0.5 * cell.at_high * (high - cell.mean) / cell.mass;
      below[i] = -by_low;
      diagonal[i] = 1.0 - by_low - by_high;
      above[i] = -by_high;
      rest[i] = cell.mean - c[i];
      largest = std::max(largest, std::abs(rest[i]));
    }
    if (largest < 1e-13 * sigma) {
      return c;
    }
    std::vector<double> step = rest;
    solve(below, diagonal, above, step);
    // Halve the step until the levels stay in order.
    for (double part = 1.0;; part *= 0.5) {
      std::vector<double> next = c;
      for (std::size_t i = 0; i < count; ++i) {
        next[i] += part * step[i];
      }
      if (next.front() > 0.0 && next.back() < 1.0 && std::ranges::is_sorted(next)) {
        if (next == c) {
          return c;  // float64 resolution
        }
        c = std::move(next);
        break;
      }
    }
  }
  return c;
}

Codebook make_codebook(int bits, Index d) {
  const auto half = std::size_t{1} << static_cast<unsigned>(bits - 1);
  std::vector<double> positive;
  if (d == 1) {  // a unit vector is 1 or -1
    for (std::size_t i = 0; i < half; ++i) {
      positive.push_back(static_cast<double>(2 * i + 1) / static_cast<double>(2 * half - 1));
    }
  } else {
    positive = positive_levels(half, d);
  }
  Codebook out;
  for (std::size_t i = half; i-- > 0;) {
    out.levels.push_back(-positive[i]);
  }
  out.levels.insert(out.levels.end(), positive.begin(), positive.end());
  for (std::size_t i = 1; i < out.levels.size(); ++i) {
    out.cuts.push_back(0.5 * (out.levels[i - 1] + out.levels[i]));
  }
  return out;
}

}  // namespace

double Codebook::nearest(double x) const {
  return levels[static_cast<std::size_t>(std::ranges::lower_bound(cuts, x) - cuts.begin())];
}

const Codebook& unit_codebook(int bits, Index d) {
  if (bits < 1 || bits > 8 || d < 1) {
    throw std::logic_error("codebook: expected 1 to 8 bits and at least one dimension");
  }
  static std::mutex mutex;
  static std::map<std::pair<int, Index>, Codebook> made;  // references stay valid
  const std::scoped_lock lock(mutex);
  const auto [place, is_new] = made.try_emplace({bits, d});
  if (is_new) {
    place->second = make_codebook(bits, d);
  }
  return place->second;
}

}  // namespace kvbench
