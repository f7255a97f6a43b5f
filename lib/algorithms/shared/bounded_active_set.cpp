#include "algorithms/shared/bounded_active_set.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/cholesky.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr double kGapTolerance = 1e-9;  // of the objective
constexpr int kMaxRounds = 200;
constexpr Index kFirst = 16;  // weights freed by the first round
constexpr int kHalvings = 6;  // of a clipped step that does not descend
constexpr double kDescends = 1e-4;
// Relative to a column's squared length: with less left by the free columns, the factor has lost
// too many digits.
constexpr double kDependent = 1e-9;
// Relative to |column| |residual|: a smaller gradient is rounding.
constexpr double kFlat = 1e-13;
// A column so short that its weight stays within this of 1.
constexpr double kNearOne = 1e-2;
// Times min(R, B)^3: multiply-adds of factorisations before giving up.
constexpr double kWork = 2.0;

class ActiveSet {
 public:
  ActiveSet(const MatrixD& e, std::span<const double> y, double low, double high, double regular)
      : e_(e),
        y_(y),
        low_(low),
        high_(high),
        regular_(regular),
        w_(e.cols(), low),
        gradient_(e.cols()),
        residual_(e.rows()),
        length_(e.cols(), 0.0),
        is_free_(e.cols(), false),
        slot_(e.cols(), -1) {
    for (Index i = 0; i < e.rows(); ++i) {
      const double* row = e.row(i);
      for (Index j = 0; j < e.cols(); ++j) {
        length_[j] = std::fma(row[j], row[j], length_[j]);
      }
    }
    const double largest = std::sqrt(dot(y.data(), y.data(), e.rows()));
    for (Index j = 0; j < e.cols(); ++j) {
      length_[j] = std::sqrt(length_[j]);
      if (length_[j] * largest <= kNearOne * regular) {
        length_[j] = 0.0;
        w_[j] = std::clamp(1.0, low, high);
      }
    }
    const auto side = static_cast<double>(std::min(e.rows(), e.cols()));
    work_left_ = kWork * side * side * side;
  }

  std::optional<BoundedFit> run() {
    double before = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kMaxRounds; ++round) {
      update_gradient();
      const double regularised = objective_ + regular_ * square_from_one();
      if (gap(regular_) <= kGapTolerance * objective_) {
        return BoundedFit{w_, objective_, gap(0.0)};
      }
      if (!(regularised < before) || !set_free() || !refit()) {
        return std::nullopt;
      }
      before = regularised;
    }
    return std::nullopt;
  }

 private:
  // Of half the objective: one pass over E.
  void update_gradient() {
    std::ranges::fill(gradient_, 0.0);
    for (Index i = 0; i < e_.rows(); ++i) {
      residual_[i] = y_[i] - dot(e_.row(i), w_.data(), e_.cols());
      add(residual_[i], e_.row(i), e_.cols(), gradient_.data());
    }
    objective_ = dot(residual_.data(), residual_.data(), e_.rows());
  }

  double downhill(Index j, double regular) const { return gradient_[j] - regular * (w_[j] - 1.0); }

  double square_from_one() const {
    double out = 0.0;
    for (const double w : w_) {
      out = std::fma(w - 1.0, w - 1.0, out);
    }
    return out;
  }

  // Upper bound of objective - optimum.
  double gap(double regular) const {
    double out = 0.0;
    for (Index j = 0; j < e_.cols(); ++j) {
      const double g = downhill(j, regular);
      out += g > 0.0 ? g * (high_ - w_[j]) : -g * (w_[j] - low_);
    }
    return 2.0 * out;
  }

  // Returns false if no fixed weight can improve, or if more columns are requested than can be
  // independent.
  bool set_free() {
    const double rounding = kFlat * std::sqrt(objective_);
    std::vector<std::pair<double, Index>> asking;  // smallest first
    for (Index j = 0; j < e_.cols(); ++j) {
      if (is_free_[j] || !(length_[j] > 0.0)) {
        continue;
      }
      const double inward = w_[j] > low_ ? -downhill(j, regular_) : downhill(j, regular_);
      if (inward > rounding * length_[j]) {
        asking.emplace_back(-inward / length_[j], j);
      }
    }
    const auto have = static_cast<Index>(free_.size());
    const auto count = std::min(static_cast<Index>(asking.size()), std::max(kFirst, have / 2));
    if (count == 0 || have + count > e_.rows() || columns_.rows() + count > 2 * e_.rows()) {
      return false;
    }
    std::partial_sort(asking.begin(), asking.begin() + count, asking.end());
    std::vector<Index> fresh;
    for (Index i = 0; i < count; ++i) {
      const Index j = asking[i].second;
      free_.push_back(j);
      is_free_[j] = true;
      if (slot_[j] < 0) {
        slot_[j] = columns_.rows() + static_cast<Index>(fresh.size());
        fresh.push_back(j);
      }
    }
    extend(fresh);
    return true;
  }

  void extend(const std::vector<Index>& fresh) {
    const auto count = static_cast<Index>(fresh.size());
    const Index known = columns_.rows();
    MatrixD own(e_.rows(), count);
    columns_.resize(known + count, e_.rows());
    for (Index i = 0; i < e_.rows(); ++i) {
      for (Index c = 0; c < count; ++c) {
        own.row(i)[c] = e_.row(i)[fresh[c]];
        columns_.row(known + c)[i] = own.row(i)[c];
      }
    }
    MatrixD products;
    inner_products(columns_, own, products);
    for (Index c = 0; c < count; ++c) {
      std::vector<double> row;
      for (Index i = 0; i <= known + c; ++i) {
        row.push_back(products.row(i)[c]);
      }
      row.back() += regular_;
      products_.push_back(std::move(row));
    }
  }

  // Moves the free weights to their optimum and fixes those that meet a bound. Returns false if
  // their columns are dependent or the work limit is reached.
  bool refit() {
    std::ranges::sort(free_, {}, [&](Index j) { return slot_[j]; });
    std::vector<double> down;
    for (const Index j : free_) {
      down.push_back(downhill(j, regular_));
    }
    MatrixD gram;
    MatrixD factor;
    while (!free_.empty()) {
      const auto n = static_cast<Index>(free_.size());
      const auto size = static_cast<double>(n);
      work_left_ -= size * size * size / 6.0;
      gather(gram);
      factor = gram;
      if (work_left_ < 0.0 || !factor_cholesky(factor)) {
        return false;
      }
      for (Index i = 0; i < n; ++i) {
        if (!(factor.row(i)[i] * factor.row(i)[i] > kDependent * gram.row(i)[i])) {
          return false;
        }
      }
      std::vector<double> way = down;
      solve_cholesky(factor, way);
      const bool whole = move_along(gram, way, down);
      if (!fix_at_bounds(way, down) && whole) {
        return true;
      }
    }
    return true;
  }

  void gather(MatrixD& gram) const {
    const auto n = static_cast<Index>(free_.size());
    gram.resize(n, n);
    for (Index a = 0; a < n; ++a) {
      const std::vector<double>& row = products_[slot_[free_[a]]];
      for (Index b = 0; b <= a; ++b) {
        gram.row(a)[b] = gram.row(b)[a] = row[slot_[free_[b]]];
      }
    }
  }

  // Moves along `way`, each weight clipped at its bound, while the objective falls; after
  // kHalvings, to where the first weight meets a bound. Updates `down`. Returns whether the full
  // step was taken.
  bool move_along(const MatrixD& gram, const std::vector<double>& way, std::vector<double>& down) {
    const auto n = static_cast<Index>(free_.size());
    std::vector<double> step(n);
    std::vector<double> taken(n);
    const auto take = [&](double part) {
      for (Index a = 0; a < n; ++a) {
        const double from = w_[free_[a]];
        step[a] = std::clamp(std::fma(part, way[a], from), low_, high_) - from;
      }
      for (Index a = 0; a < n; ++a) {
        taken[a] = dot(gram.row(a), step.data(), n);
      }
    };
    double part = 1.0;
    for (int halving = 0; halving <= kHalvings; ++halving, part *= 0.5) {
      if (halving == kHalvings) {
        part = first_bound(way);
      }
      take(part);
      const double along = dot(down.data(), step.data(), n);
      const double curve = dot(taken.data(), step.data(), n);
      if (halving == kHalvings || along - 0.5 * curve > kDescends * along) {
        break;
      }
    }
    for (Index a = 0; a < n; ++a) {
      w_[free_[a]] = std::clamp(std::fma(part, way[a], w_[free_[a]]), low_, high_);
      down[a] -= taken[a];
    }
    return part == 1.0;
  }

  double first_bound(const std::vector<double>& way) const {
    double part = 1.0;
    for (std::size_t a = 0; a < way.size(); ++a) {
      const double from = w_[free_[a]];
      const double bound = way[a] < 0.0 ? low_ : high_;
      if (from + way[a] < low_ || from + way[a] > high_) {
        part = std::min(part, (bound - from) / way[a]);
      }
    }
    return part;
  }

  // Fixes the weights that reached a bound; returns whether there were any.
  bool fix_at_bounds(const std::vector<double>& way, std::vector<double>& down) {
    std::size_t left = 0;
    for (std::size_t a = 0; a < free_.size(); ++a) {
      const Index j = free_[a];
      if ((w_[j] <= low_ && way[a] < 0.0) || (w_[j] >= high_ && way[a] > 0.0)) {
        is_free_[j] = false;
        continue;
      }
      free_[left] = j;
      down[left] = down[a];
      ++left;
    }
    const bool any = left < free_.size();
    free_.resize(left);
    down.resize(left);
    return any;
  }

  const MatrixD& e_;
  std::span<const double> y_;
  double low_, high_, regular_;
  std::vector<double> w_, gradient_, residual_;
  std::vector<double> length_;  // of columns; 0: w is fixed
  double objective_ = 0.0;
  double work_left_;
  std::vector<Index> free_;
  std::vector<bool> is_free_;
  std::vector<Index> slot_;                    // index among columns ever freed, or -1
  MatrixD columns_;                            // columns ever freed, one per row
  std::vector<std::vector<double>> products_;  // lower triangle of their Gram matrix
};

}  // namespace

std::optional<BoundedFit> active_set_fit(const MatrixD& e, std::span<const double> y, double low,
                                         double high, double regular) {
  return ActiveSet(e, y, low, high, regular).run();
}

}  // namespace kvbench
