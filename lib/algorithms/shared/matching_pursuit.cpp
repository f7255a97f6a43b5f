#include "algorithms/shared/matching_pursuit.hpp"

#include <algorithm>
#include <cmath>

#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

// Relative to a column's squared length: with less left after projection, the column depends on the
// free ones.
constexpr double kDependentColumn = 1e-12;
// Relative to |column| |y|: a smaller multiplier counts as 0.
constexpr double kFlatColumn = 1e-12;

using kvbench::add;
using kvbench::dot;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return dot(a.data(), b.data(), static_cast<Index>(a.size()));
}

void add(double factor, const std::vector<double>& x, std::vector<double>& out) {
  add(factor, x.data(), static_cast<Index>(out.size()), out.data());
}

// Lower Cholesky factor of the free columns' Gram matrix, a row per column, in the order in which
// columns became free.
class Factor {
 public:
  std::size_t size() const { return rows_.size(); }

  // `gram`: inner products with the free columns, in order, then with itself. Returns false,
  // without change, if the column depends on them.
  bool append(const std::vector<double>& gram) {
    std::vector<double> row(size() + 1);
    double rest = gram.back();
    for (std::size_t i = 0; i < size(); ++i) {
      row[i] = (gram[i] - dot(rows_[i].data(), row.data(), i)) / rows_[i][i];
      rest = std::fma(-row[i], row[i], rest);
    }
    if (!(rest > kDependentColumn * gram.back())) {
      return false;
    }
    row.back() = std::sqrt(rest);
    rows_.push_back(std::move(row));
    return true;
  }

  // Removes column `place`; rotations restore the triangle.
  void remove(std::size_t place) {
    rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(place));
    for (std::size_t c = place; c < size(); ++c) {
      const double a = rows_[c][c];
      const double b = rows_[c][c + 1];
      const double length = std::hypot(a, b);
      for (std::size_t i = c; i < size(); ++i) {
        const double x = rows_[i][c];
        const double y = rows_[i][c + 1];
        rows_[i][c] = (a * x + b * y) / length;
        rows_[i][c + 1] = (a * y - b * x) / length;
      }
      rows_[c].pop_back();
    }
  }

  std::vector<double> solve(std::vector<double> x) const {
    for (std::size_t i = 0; i < size(); ++i) {
      x[i] = (x[i] - dot(rows_[i].data(), x.data(), i)) / rows_[i][i];
    }
    for (std::size_t i = size(); i-- > 0;) {
      x[i] /= rows_[i][i];
      for (std::size_t t = 0; t < i; ++t) {
        x[t] = std::fma(-rows_[i][t], x[i], x[t]);
      }
    }
    return x;
  }

 private:
  std::vector<std::vector<double>> rows_;  // row i has i + 1 entries
};

// Primal active-set method for argmin |E_S w - y|^2 within bounds, for growing S.
class BoundedWeights {
 public:
  BoundedWeights(std::vector<double> y, double low, double high)
      : y_(std::move(y)), low_(low), high_(high), y_norm_(std::sqrt(dot(y_, y_))) {}

  void add_column(std::vector<double> column) {
    std::vector<double> own;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      own.push_back(dot(columns_[i], column));
      gram_[i].push_back(own.back());
    }
    own.push_back(dot(column, column));
    gram_.push_back(std::move(own));
    target_.push_back(dot(column, y_));
    columns_.push_back(std::move(column));
    w_.push_back(low_);
    is_free_.push_back(false);
    refit();
  }

  std::vector<double> residual() const {
    std::vector<double> out = y_;
    for (std::size_t j = 0; j < w_.size(); ++j) {
      add(-w_[j], columns_[j], out);
    }
    return out;
  }

 private:
  void refit() {
    std::vector<bool> barred(w_.size(), false);
    down_ = target_;
    for (std::size_t j = 0; j < w_.size(); ++j) {
      add(-w_[j], gram_[j], down_);
    }
    // Each round frees or fixes one weight; the limit is far above what is needed.
    for (std::size_t round = 0; round < 10 * w_.size() + 100; ++round) {
      to_optimum();
      const std::size_t next = most_wrong(barred);
      if (next == w_.size()) {
        return;
      }
      std::vector<double> row;
      for (const std::size_t f : free_) {
        row.push_back(gram_[next][f]);
      }
      row.push_back(gram_[next][next]);
      if (factor_.append(row)) {
        free_.push_back(next);
        is_free_[next] = true;
      } else {
        barred[next] = true;
      }
    }
  }

  // Moves the free weights to their optimum and fixes those that meet a bound.
  void to_optimum() {
    while (!free_.empty()) {
      std::vector<double> best;
      for (const std::size_t f : free_) {
        best.push_back(down_[f]);
      }
      best = factor_.solve(std::move(best));
      for (std::size_t i = 0; i < free_.size(); ++i) {
        best[i] += w_[free_[i]];
      }
      double step = 1.0;
      std::size_t first = free_.size();
      for (std::size_t i = 0; i < free_.size(); ++i) {
        const double from = w_[free_[i]];
        const double bound = best[i] < low_ ? low_ : high_;
        if (best[i] >= low_ && best[i] <= high_) {
          continue;
        }
        const double reach = std::clamp((bound - from) / (best[i] - from), 0.0, 1.0);
        if (first == free_.size() || reach < step) {
          step = reach;
          first = i;
        }
      }
      for (std::size_t i = 0; i < free_.size(); ++i) {
        const double from = w_[free_[i]];
        move(free_[i], from + step * (best[i] - from));
      }
      if (first == free_.size()) {
        return;
      }
      move(free_[first], best[first] < low_ ? low_ : high_);
      factor_.remove(first);
      is_free_[free_[first]] = false;
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }

  void move(std::size_t j, double to) {
    const double from = w_[j];
    w_[j] = std::clamp(to, low_, high_);
    add(from - w_[j], gram_[j], down_);
  }

  // The fixed weight with the largest inward gradient, or w_.size() if none.
  std::size_t most_wrong(const std::vector<bool>& barred) const {
    std::size_t out = w_.size();
    double largest = 0.0;
    for (std::size_t j = 0; j < w_.size(); ++j) {
      if (barred[j] || !(high_ > low_) || is_free_[j]) {
        continue;
      }
      const double inward = w_[j] > low_ ? -down_[j] : down_[j];
      const double flat = kFlatColumn * std::sqrt(gram_[j][j]) * y_norm_;
      if (inward > flat && inward > largest) {
        largest = inward;
        out = j;
      }
    }
    return out;
  }

  std::vector<double> y_;
  double low_, high_, y_norm_;
  std::vector<std::vector<double>> columns_, gram_;
  std::vector<double> target_, w_;
  std::vector<double> down_;       // E_S' (y - E_S w): half of the gradient, downhill
  std::vector<std::size_t> free_;  // in the factor's order
  std::vector<bool> is_free_;
  Factor factor_;
};

}  // namespace

std::vector<Index> matching_pursuit(const MatrixD& e, std::span<const double> y, Index count,
                                    double low, double high) {
  BoundedWeights weights({y.begin(), y.end()}, low, high);
  std::vector<Index> out;
  std::vector<bool> chosen(e.cols(), false);
  std::vector<double> along(e.cols());
  while (static_cast<Index>(out.size()) < count) {
    const std::vector<double> residual = weights.residual();
    std::fill(along.begin(), along.end(), 0.0);
    for (Index i = 0; i < e.rows(); ++i) {
      const double r = residual[i];
      const double* row = e.row(i);
      for (std::size_t j = 0; j < along.size(); ++j) {
        along[j] = std::fma(row[j], r, along[j]);
      }
    }
    std::size_t best = along.size();
    for (std::size_t j = 0; j < along.size(); ++j) {
      if (!chosen[j] && (best == along.size() || along[j] > along[best])) {
        best = j;
      }
    }
    chosen[best] = true;
    out.push_back(static_cast<Index>(best));
    std::vector<double> column;
    for (Index i = 0; i < e.rows(); ++i) {
      column.push_back(e.row(i)[best]);
    }
    weights.add_column(std::move(column));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace kvbench
