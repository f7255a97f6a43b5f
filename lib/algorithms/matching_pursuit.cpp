#include "algorithms/matching_pursuit.hpp"

#include <algorithm>
#include <cmath>

namespace kvbench {
namespace {

// Of a column's squared length: what is less after projection is rounding, and the column depends
// on the free ones.
constexpr double kDependent = 1e-12;
// Of |column| |y|: a multiplier below it is 0.
constexpr double kFlat = 1e-12;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum = std::fma(a[i], b[i], sum);
  }
  return sum;
}

// Lower Cholesky factor of the Gram matrix of the free columns, one row a column, in the order in
// which they became free.
class Factor {
 public:
  std::size_t size() const { return rows_.size(); }

  // `gram`: inner products with the free columns, in order, and with itself. False, and nothing
  // changed, where the column depends on them.
  bool append(const std::vector<double>& gram) {
    std::vector<double> row(size() + 1);
    double rest = gram.back();
    for (std::size_t i = 0; i < size(); ++i) {
      double sum = gram[i];
      for (std::size_t t = 0; t < i; ++t) {
        sum = std::fma(-rows_[i][t], row[t], sum);
      }
      row[i] = sum / rows_[i][i];
      rest = std::fma(-row[i], row[i], rest);
    }
    if (!(rest > kDependent * gram.back())) {
      return false;
    }
    row.back() = std::sqrt(rest);
    rows_.push_back(std::move(row));
    return true;
  }

  // Takes column `place` out: rotations bring the rows below back to a triangle.
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
      for (std::size_t t = 0; t < i; ++t) {
        x[i] = std::fma(-rows_[i][t], x[t], x[i]);
      }
      x[i] /= rows_[i][i];
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

// argmin |E_S w - y|^2 within bounds, kept at its optimum while S grows: a primal active-set
// method. Weights at a bound are fixed; the others, free, solve their normal equations.
class BoundedWeights {
 public:
  BoundedWeights(std::vector<double> y, double low, double high)
      : y_(std::move(y)), low_(low), high_(high), y_norm_(std::sqrt(dot(y_, y_))) {}

  void add(std::vector<double> column) {
    std::vector<double> gram;
    for (const std::vector<double>& other : columns_) {
      gram.push_back(dot(other, column));
    }
    gram.push_back(dot(column, column));
    target_.push_back(dot(column, y_));
    columns_.push_back(std::move(column));
    gram_.push_back(std::move(gram));
    w_.push_back(low_);
    is_free_.push_back(false);
    settle();
  }

  // y - E_S w.
  std::vector<double> residual() const {
    std::vector<double> out = y_;
    for (std::size_t j = 0; j < w_.size(); ++j) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = std::fma(-w_[j], columns_[j][i], out[i]);
      }
    }
    return out;
  }

 private:
  double gram(std::size_t i, std::size_t j) const { return i >= j ? gram_[i][j] : gram_[j][i]; }

  void settle() {
    std::vector<bool> barred(w_.size(), false);
    // Each round frees one weight or fixes one; far fewer rounds are needed than this.
    for (std::size_t round = 0; round < 10 * w_.size() + 100; ++round) {
      to_optimum();
      const std::size_t next = most_wrong(barred);
      if (next == w_.size()) {
        return;
      }
      std::vector<double> row;
      for (const std::size_t f : free_) {
        row.push_back(gram(next, f));
      }
      row.push_back(gram(next, next));
      if (factor_.append(row)) {
        free_.push_back(next);
        is_free_[next] = true;
      } else {
        barred[next] = true;
      }
    }
  }

  // Moves the free weights to the optimum of their own, and fixes those that meet a bound on the
  // way there.
  void to_optimum() {
    while (!free_.empty()) {
      std::vector<double> right;
      for (const std::size_t f : free_) {
        double sum = target_[f];
        for (std::size_t j = 0; j < w_.size(); ++j) {
          if (!is_free_[j]) {
            sum = std::fma(-gram(f, j), w_[j], sum);
          }
        }
        right.push_back(sum);
      }
      const std::vector<double> best = factor_.solve(std::move(right));
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
        double& w = w_[free_[i]];
        w = std::clamp(w + step * (best[i] - w), low_, high_);
      }
      if (first == free_.size()) {
        return;
      }
      w_[free_[first]] = best[first] < low_ ? low_ : high_;
      factor_.remove(first);
      is_free_[free_[first]] = false;
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }

  // The fixed weight that most wants to leave its bound, by its gradient; w_.size(): none does.
  std::size_t most_wrong(const std::vector<bool>& barred) const {
    std::size_t out = w_.size();
    double most = 0.0;
    for (std::size_t j = 0; j < w_.size(); ++j) {
      if (barred[j] || !(high_ > low_) || is_free_[j]) {
        continue;
      }
      double down = target_[j];
      for (std::size_t i = 0; i < w_.size(); ++i) {
        down = std::fma(-gram(j, i), w_[i], down);
      }
      const double inward = w_[j] > low_ ? -down : down;
      const double flat = kFlat * std::sqrt(gram(j, j)) * y_norm_;
      if (inward > flat && inward > most) {
        most = inward;
        out = j;
      }
    }
    return out;
  }

  std::vector<double> y_;
  double low_, high_, y_norm_;
  std::vector<std::vector<double>> columns_, gram_;  // gram_[j][i], i <= j
  std::vector<double> target_, w_;
  std::vector<std::size_t> free_;  // in the factor's order
  std::vector<bool> is_free_;
  Factor factor_;
};

}  // namespace

std::vector<Index> matching_pursuit(const MatrixD& e, std::span<const double> y, Index count,
                                    double low, double high) {
  BoundedWeights weights({y.begin(), y.end()}, low, high);
  std::vector<Index> out;
  std::vector<bool> chosen(static_cast<std::size_t>(e.cols()), false);
  std::vector<double> along(static_cast<std::size_t>(e.cols()));
  while (static_cast<Index>(out.size()) < count) {
    const std::vector<double> residual = weights.residual();
    std::fill(along.begin(), along.end(), 0.0);
    for (Index i = 0; i < e.rows(); ++i) {
      const double r = residual[static_cast<std::size_t>(i)];
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
    weights.add(std::move(column));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace kvbench
