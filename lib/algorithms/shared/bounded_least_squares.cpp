#include "algorithms/shared/bounded_least_squares.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cholesky.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

// Element-wise operations only; sums have a fixed order (core/vector_sums.hpp).
using Eigen::ArrayXd;

constexpr double kTolerance = 1e-7;  // of the objective
constexpr int kMaxIterations = 100;
// Iterations without progress: neither the gap falls, nor complementarity by this factor.
constexpr int kPatience = 8;
constexpr double kFalls = 0.9;
// With complementarity this far below the tolerance only rounding is left in the gap. The objective
// is not known below the rounding of |y|^2.
constexpr double kSmall = 1e-4 * kTolerance;
constexpr double kRounding = 1e-16;
constexpr double kBoundary = 0.99;  // part of the step to the nearest bound
// Weight of |w - 1|^2 / 2 beside |E w - y|^2 / 2, relative to the trace of E'E: far below what a
// gap of 1e-7 resolves, above the rounding of E'E.
constexpr double kRegular = 1e-13;
constexpr double kSolved = 1e-7;      // residual of a Newton system, relative to its right side
constexpr double kConverges = 0.3;    // factor of a refinement; above it float32 fails
constexpr double kUsualRange = 20.0;  // of bounds; wider ones are weighted less

double inner(const ArrayXd& a, const ArrayXd& b) {
  return dot(a.data(), b.data(), a.size());
}

double total(const ArrayXd& a) {
  return sum(a.data(), a.size());
}

ArrayXd product(const MatrixD& e, const ArrayXd& x) {
  ArrayXd out(e.rows());
  for (Index i = 0; i < e.rows(); ++i) {
    out[i] = dot(e.row(i), x.data(), e.cols());
  }
  return out;
}

ArrayXd transposed_product(const MatrixD& e, const ArrayXd& r) {
  ArrayXd out = ArrayXd::Zero(e.cols());
  for (Index i = 0; i < e.rows(); ++i) {
    add(r[i], e.row(i), e.cols(), out.data());
  }
  return out;
}

// Solves (E'E / unit + diag(D)) x = r for a sequence of D. If unknowns outnumber rows, by the
// Woodbury identity: S = 1 + E D^-1 E' / unit, nearly all of the work, is summed in float32 and
// solutions are refined in float64 while that converges. Late systems, with D over many orders of
// magnitude, need float64.
class Newton {
 public:
  Newton(const MatrixD& e, double unit)
      : e_(e), unit_(unit), wide_(e.cols() > e.rows()), single_(wide_) {
    if (!wide_) {
      MatrixD e_t;
      transpose(e, e_t);
      inner_products(e_t, e, gram_, true);
      for (Index i = 0; i < gram_.rows() * gram_.cols(); ++i) {
        gram_.data()[i] /= unit;
      }
    } else {
      columns_ = scaled_columns_ = Matrix(e.cols(), e.rows());
      for (Index j = 0; j < e.cols(); ++j) {
        for (Index i = 0; i < e.rows(); ++i) {
          columns_.row(j)[i] = static_cast<float>(e.row(i)[j]);
        }
      }
    }
  }

  void factor(const ArrayXd& diagonal) {
    diagonal_ = diagonal;
    single_ = single_ && factor_single();
    if (!single_) {
      factor_double();
    }
  }

  ArrayXd solve(const ArrayXd& r) {
    if (single_) {
      if (const std::optional<ArrayXd> x = refined(r)) {
        return *x;
      }
      single_ = false;
      factor_double();
    }
    // One refinement: with D of all magnitudes the factor alone may lose half of the digits.
    ArrayXd x = once(r);
    x += once(residual(r, x));
    return x;
  }

 private:
  ArrayXd residual(const ArrayXd& r, const ArrayXd& x) const {
    ArrayXd out = r - diagonal_ * x;
    for (Index i = 0; i < e_.rows(); ++i) {
      add(-dot(e_.row(i), x.data(), e_.cols()) / unit_, e_.row(i), e_.cols(), out.data());
    }
    return out;
  }

  // Solves with the float32 factor; nullopt if refinement does not converge.
  std::optional<ArrayXd> refined(const ArrayXd& r) const {
    ArrayXd x = once(r);
    const double target = kSolved * std::sqrt(inner(r, r));
    double before = std::numeric_limits<double>::infinity();
    for (;;) {
      const ArrayXd left = residual(r, x);
      const double now = std::sqrt(inner(left, left));
      if (now <= target) {
        return x;
      }
      if (!(now <= kConverges * before)) {
        return std::nullopt;
      }
      before = now;
      x += once(left);
    }
  }

  bool factor_single() {
    const Index rows = e_.rows();
    for (Index j = 0; j < e_.cols(); ++j) {
      const auto s = static_cast<float>(1.0 / std::sqrt(diagonal_[j] * unit_));
      for (Index i = 0; i < rows; ++i) {
        scaled_columns_.row(j)[i] = s * columns_.row(j)[i];
      }
    }
    system_.resize(rows, rows);
    std::fill_n(system_.data(), rows * rows, 0.0);
    for (Index i = 0; i < rows; ++i) {
      system_.row(i)[i] = 1.0;
    }
    add_gram<float>(scaled_columns_.view(), system_);
    return factor_cholesky(system_);
  }

  void factor_double() {
    if (wide_) {
      columns_ = scaled_columns_ = {};  // float32 is no longer used
    }
    // Rounding may make the matrix indefinite.
    for (double more = 0.0;; more = std::max(1e-13 * static_cast<double>(e_.cols()), 100 * more)) {
      if (wide_) {
        sum_rows();
      } else {
        system_ = gram_;
      }
      for (Index i = 0; i < system_.rows(); ++i) {
        system_.row(i)[i] += more + (wide_ ? 1.0 : diagonal_[i]);
      }
      if (factor_cholesky(system_) || !(more < 1.0)) {
        return;
      }
    }
  }

  // Upper triangle of E D^-1 E' / unit.
  void sum_rows() {
    ArrayXd by(e_.cols());
    for (Index j = 0; j < e_.cols(); ++j) {  // Eigen's AVX-512 square root is not correctly rounded
      by[j] = std::sqrt(diagonal_[j] * unit_);
    }
    scaled_.resize(e_.rows(), e_.cols());
    for (Index i = 0; i < e_.rows(); ++i) {
      for (Index j = 0; j < e_.cols(); ++j) {
        scaled_.row(i)[j] = e_.row(i)[j] / by[j];
      }
    }
    transpose(scaled_, scaled_t_);
    inner_products(scaled_, scaled_t_, system_, true);
  }

  ArrayXd once(const ArrayXd& r) const {
    if (!wide_) {
      ArrayXd x = r;
      solve_cholesky(system_, {x.data(), static_cast<std::size_t>(x.size())});
      return x;
    }
    const ArrayXd inner = r / diagonal_;
    ArrayXd along = product(e_, inner);
    solve_cholesky(system_, {along.data(), static_cast<std::size_t>(along.size())});
    return inner - transposed_product(e_, along / unit_) / diagonal_;
  }

  const MatrixD& e_;
  double unit_;
  bool wide_;
  bool single_;                      // float32 still suffices
  Matrix columns_, scaled_columns_;  // E' [B, R], and its rows times 1 / sqrt(D unit)
  MatrixD gram_, system_;            // system_ holds the factor
  MatrixD scaled_, scaled_t_;
  ArrayXd diagonal_;
};

// Largest step in [0, 1] along dx that keeps x >= 0.
double longest(const ArrayXd& x, const ArrayXd& dx) {
  double step = 1.0;
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    if (dx[i] < 0.0) {
      step = std::min(step, -x[i] / dx[i]);
    }
  }
  return step;
}

// A point within the bounds (s = w - low, t = high - w) and its multipliers.
struct Point {
  ArrayXd w, s, t, z, u;

  double centre() const { return (inner(s, z) + inner(t, u)) / static_cast<double>(2 * w.size()); }
};

struct Step {
  ArrayXd w, z, u;

  double length(const Point& p) const {
    return std::min({longest(p.s, w), longest(p.t, -w), longest(p.z, z), longest(p.u, u)});
  }
};

class InteriorPoint {
 public:
  InteriorPoint(const MatrixD& e, std::span<const double> y, double low, double high)
      : e_(e),
        y_(Eigen::Map<const ArrayXd>(y.data(), e.rows())),
        low_(low),
        high_(high),
        unit_(dot(e.data(), e.data(), e.rows() * e.cols()) / static_cast<double>(e.cols())),
        regular_(kRegular * static_cast<double>(e.cols()) /
                 std::pow(std::max(1.0, (high - low) / kUsualRange), 2)) {}

  bool open() const { return unit_ > 0.0 && std::isfinite(unit_) && high_ > low_; }

  double regular() const { return regular_ * unit_; }

  BoundedFit fit_at(const ArrayXd& w) const {
    BoundedFit out;
    out.w.assign(w.begin(), w.end());
    const ArrayXd residual = product(e_, w) - y_;
    out.objective = inner(residual, residual);
    out.gap = 2.0 * gap(w, transposed_product(e_, residual));
    return out;
  }

  BoundedFit run() {
    Newton newton(e_, unit_);
    Point p = start();
    BoundedFit best = fit_at(p.w);
    double smallest = std::numeric_limits<double>::infinity();
    double nearest = smallest;  // smallest complementarity
    const double floor = kRounding * inner(y_, y_) / unit_;
    int idle = 0;
    for (int iteration = 0; iteration < kMaxIterations && idle < kPatience; ++iteration) {
      const ArrayXd residual = product(e_, p.w) - y_;
      const ArrayXd gradient = gradient_at(p.w, residual);
      const double here = gap(p.w, gradient);
      const double objective = 0.5 * inner(residual, residual) / unit_;
      const double centre = p.centre();
      idle = here < smallest || centre < kFalls * nearest ? 0 : idle + 1;
      nearest = std::min(nearest, centre);
      if (here < smallest) {
        smallest = here;
        best = fit_at(p.w);
      }
      const double left = centre * static_cast<double>(2 * e_.cols());
      if (!(here > kTolerance * objective) || !(left > kSmall * std::max(objective, floor))) {
        break;
      }
      newton.factor(p.z / p.s + p.u / p.t + regular_);
      advance(newton, gradient, p);
    }
    return best;
  }

 private:
  ArrayXd gradient_at(const ArrayXd& w, const ArrayXd& residual) const {
    return transposed_product(e_, residual) / unit_ + regular_ * (w - 1.0);
  }

  double gap(const ArrayXd& w, const ArrayXd& gradient) const {
    return inner(gradient.max(0.0), w - low_) + inner((-gradient).max(0.0), high_ - w);
  }

  // w = 1 if well inside, and multipliers that balance its gradient.
  Point start() const {
    const double margin = 0.1 * std::min(1.0, high_ - low_);
    const double first = std::clamp(1.0, low_ + margin, std::max(low_ + margin, high_ - margin));
    Point p;
    p.w = ArrayXd::Constant(e_.cols(), first);
    p.s = p.w - low_;
    p.t = high_ - p.w;
    const ArrayXd g = gradient_at(p.w, product(e_, p.w) - y_);
    // The mean gradient: with less, the first steps run into the bounds.
    const double lift = std::max(total(g.abs()) / static_cast<double>(g.size()), 1e-300);
    p.z = g.max(0.0) + lift;
    p.u = (-g).max(0.0) + lift;
    return p;
  }

  // The Newton direction for complementarity products s z -> target_z, t u -> target_u.
  static Step direction(Newton& newton, const ArrayXd& gradient, const Point& p,
                        const ArrayXd& target_z, const ArrayXd& target_u) {
    Step out;
    const ArrayXd right = -gradient + target_z / p.s - target_u / p.t;
    out.w = newton.solve(right);
    out.z = (target_z - p.z * out.w) / p.s - p.z;
    out.u = (target_u + p.u * out.w) / p.t - p.u;
    return out;
  }

  static void advance(Newton& newton, const ArrayXd& gradient, Point& p) {
    const ArrayXd none = ArrayXd::Zero(p.w.size());
    const Step affine = direction(newton, gradient, p, none, none);
    const double reach = affine.length(p);
    const double centre = p.centre();
    const double then = (inner(p.s + reach * affine.w, p.z + reach * affine.z) +
                         inner(p.t - reach * affine.w, p.u + reach * affine.u)) /
                        static_cast<double>(2 * p.w.size());
    const double target = centre * std::pow(std::clamp(then / centre, 0.0, 1.0), 3);
    const Step step =
        direction(newton, gradient, p, target - affine.w * affine.z, target + affine.w * affine.u);
    const double length = std::min(1.0, kBoundary * step.length(p));
    const Point before = p;
    p.w += length * step.w;
    p.s += length * step.w;
    p.t -= length * step.w;
    p.z += length * step.z;
    p.u += length * step.u;
    const double smallest =
        std::min({p.s.minCoeff(), p.t.minCoeff(), p.z.minCoeff(), p.u.minCoeff()});
    if (!(smallest > 0.0) || !p.w.allFinite()) {
      p = before;  // out of digits; kPatience ends the loop
    }
  }

  const MatrixD& e_;
  ArrayXd y_;
  double low_, high_;
  double unit_;  // mean squared column length, the unit of the problem
  double regular_;
};

}  // namespace

BoundedFit bounded_least_squares(const MatrixD& e, std::span<const double> y, double low,
                                 double high) {
  if (e.cols() == 0) {
    BoundedFit none;
    for (const double x : y) {
      none.objective += x * x;
    }
    return none;
  }
  InteriorPoint solver(e, y, low, high);
  if (!solver.open()) {
    return solver.fit_at(ArrayXd::Constant(e.cols(), std::clamp(1.0, low, high)));
  }
  BoundedFit out = active_set_fit(e, y, low, high, solver.regular()).value_or(BoundedFit{});
  if (out.w.empty()) {
    out = solver.run();
  }
  for (double& w : out.w) {
    w = std::clamp(w, low, high);
  }
  return out;
}

}  // namespace kvbench
