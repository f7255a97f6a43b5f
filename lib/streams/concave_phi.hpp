// The concave function phi of BumbleBee's importance c(A) = phi(sum of the scores in A), and its
// increments phi(x + a) - phi(x). They avoid the cancellation of the difference: an increment has a
// relative error of about 1e-14, however small it is beside phi(x).
#pragma once

#include <algorithm>
#include <cmath>

#include "core/math.hpp"

namespace kvbench {

/// phi(x) = log(1 + x). The same bits on every device.
struct LogPhi {
  struct Point {
    double x = 0.0;
    double y = 0.0;
  };

  KVB_HD Point at(double x) const { return {x, log1p_shared(x)}; }
  KVB_HD double increment(const Point& from, double a) const {
    return log1p_shared(a / (1.0 + from.x));
  }
  KVB_HD double decrement(const Point& from, double a) const {
    return -log1p_shared(-a / (1.0 + from.x));
  }
  KVB_HD double slope(const Point& from) const { return 1.0 / (1.0 + from.x); }
};

/// phi(x), x >= 0: log(1 + x), or the y >= 0 with alpha y^(1/alpha) + beta y = x.
class ConcavePhi {
 public:
  /// A point (x, phi(x)), shared by many increments.
  using Point = LogPhi::Point;

  static ConcavePhi log() { return {}; }
  /// 0 < alpha <= 1, beta >= 0.
  static ConcavePhi power(double alpha, double beta) {
    ConcavePhi phi;
    phi.log_ = false;
    phi.alpha_ = alpha;
    phi.beta_ = beta;
    phi.p_ = 1.0 / alpha;
    return phi;
  }

  bool is_log() const { return log_; }

  Point at(double x) const { return log_ ? LogPhi().at(x) : Point{x, solve({}, x)}; }

  /// phi(x + a) - phi(x), a >= 0. Non-increasing in x and non-decreasing in a, up to rounding.
  double increment(const Point& from, double a) const {
    return log_ ? LogPhi().increment(from, a) : solve(from, a);
  }

  /// phi(x) - phi(x - a), 0 <= a <= x.
  double decrement(const Point& from, double a) const {
    return log_ ? LogPhi().decrement(from, a) : solve(at(from.x - a), a);
  }

  /// phi'(x): a lower bound of decrement / a and an upper bound of increment / a. May be +inf.
  double slope(const Point& from) const {
    return log_ ? LogPhi().slope(from) : 1.0 / (std::pow(from.y, p_ - 1.0) + beta_);
  }

 private:
  // The d >= 0 with alpha ((y + d)^p - y^p) + beta d = a. The left side is convex and rising, and
  // Newton's method starts slightly above the root up to rounding, so it descends. A step of 1e-10
  // leaves an error below rounding.
  double solve(const Point& from, double a) const {
    if (a <= 0.0) {
      return 0.0;
    }
    const double y = from.y;
    const double slope_y = std::pow(y, p_ - 1.0) + beta_;
    double d = std::pow(a / alpha_, alpha_);
    d = std::min(d, a / slope_y);  // slope_y may be 0: +inf
    const double whole = std::pow((from.x + a) / alpha_, alpha_) - y;
    if (whole > 0.0) {
      d = std::min(d, whole);
    }
    const double power_y = std::pow(y, p_);
    for (int step = 0; step < 200; ++step) {
      // Beyond d = y the difference loses nothing, and the other form could overflow.
      const double rise =
          d > y ? std::pow(y + d, p_) - power_y : power_y * std::expm1(p_ * std::log1p(d / y));
      const double excess = alpha_ * rise + beta_ * d - a;
      const double move = excess / (std::pow(y + d, p_ - 1.0) + beta_);
      const double next = std::max(d - move, 0.5 * d);
      const bool done = std::abs(next - d) <= 1e-10 * d;
      d = next;
      if (done) {
        break;
      }
    }
    return d;
  }

  bool log_ = true;
  double alpha_ = 1.0;
  double beta_ = 0.0;
  double p_ = 1.0;
};

}  // namespace kvbench
