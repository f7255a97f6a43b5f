// Bounded least squares and matching pursuit against active-set references in long double: the
// optimum, its conditions, and what is returned where there are many.

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "algorithms/shared/bounded_active_set.hpp"
#include "algorithms/shared/bounded_least_squares.hpp"
#include "algorithms/shared/matching_pursuit.hpp"
#include "reference/bounded_fit.hpp"

namespace kvbench::test_bounded_fit {
namespace {

using reference::Real;

// What the solver promises of the objective, relative; and what |y|^2 cannot be resolved below.
constexpr Real kOptimum = 1e-6L;
constexpr Real kRounding = 1e-13L;

struct Problem {
  reference::Rows e;
  reference::Vec y;
  MatrixD matrix;
  std::vector<double> target;

  Problem(Index rows, Index cols) : e(static_cast<std::size_t>(rows)), matrix(rows, cols) {}

  void finish() {
    for (Index i = 0; i < matrix.rows(); ++i) {
      auto& row = e[i];
      row.assign(matrix.row(i), matrix.row(i) + matrix.cols());
      y.push_back(static_cast<Real>(target[i]));
    }
  }
};

// As attention makes them: exponentials of m tokens in each row, divided by the largest; the first
// `cols` tokens are kept, y is the sum of all. `repeats`: tokens whose column is another's.
Problem attention_problem(Index rows, Index cols, Index tokens, double spread, bool repeats,
                          unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, 1.0);
  const Index d = 6;
  std::vector<double> keys(tokens * d);
  for (double& x : keys) {
    x = spread * normal(generator);
  }
  for (Index j = 1; repeats && j < tokens; j += 2) {
    std::copy_n(keys.begin() + (j / 3) * d, d, keys.begin() + j * d);
  }
  Problem out(rows, cols);
  for (Index i = 0; i < rows; ++i) {
    std::vector<double> q(d);
    for (double& x : q) {
      x = normal(generator);
    }
    std::vector<double> logits;
    for (Index j = 0; j < tokens; ++j) {
      double sum = 0.0;
      for (Index t = 0; t < d; ++t) {
        sum += q[t] * keys[j * d + t];
      }
      logits.push_back(sum);
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (Index j = 0; j < tokens; ++j) {
      const double x = std::exp(logits[j] - top);
      sum += x;
      if (j < cols) {
        out.matrix.row(i)[j] = x;
      }
    }
    out.target.push_back(sum);
  }
  out.finish();
  return out;
}

reference::Vec wide(const std::vector<double>& w) {
  return {w.begin(), w.end()};
}

TEST(BoundedLeastSquares, IsAtTheOptimumOfTheActiveSetReference) {
  for (const auto& [low, high] :
       {std::pair{1.0, 20.085536923187668}, {0.0, 1e4}, {0.05, 20.0}, {1.0, 1.5}, {2.0, 2.0}}) {
    for (const auto& [rows, cols] :
         {std::pair<Index, Index>{40, 12}, {12, 40}, {25, 25}, {1, 9}, {30, 1}, {1, 1}, {2, 30}}) {
      for (const bool repeats : {false, true}) {
        for (const double spread : {0.3, 2.0, 12.0}) {
          const Problem p = attention_problem(rows, cols, 3 * cols + 5, spread, repeats, 7);
          const BoundedFit got = bounded_least_squares(p.matrix, p.target, low, high);
          ASSERT_EQ(static_cast<Index>(got.w.size()), cols);
          for (const double w : got.w) {
            ASSERT_TRUE(low <= w && w <= high) << w;
          }
          const Real l = static_cast<Real>(low);
          const Real h = static_cast<Real>(high);
          const reference::Vec best = reference::bounded_fit(p.e, p.y, l, h);
          // The reference itself is at an optimum: its conditions hold.
          ASSERT_TRUE(reference::violation(p.e, p.y, best, l, h, 1e-12L) <= 1e-9L);
          const Real square = reference::dot(p.y, p.y);
          const Real optimum = reference::misfit(p.e, p.y, best);
          const Real mine = reference::misfit(p.e, p.y, wide(got.w));
          ASSERT_TRUE(mine <= optimum * (1 + kOptimum) + kRounding * square)
              << rows << "x" << cols << " [" << low << ", " << high << "] spread " << spread
              << (repeats ? " repeats" : "") << ": " << static_cast<double>(mine) << " against "
              << static_cast<double>(optimum);
          // What it says of itself.
          ASSERT_TRUE(std::fabs(static_cast<Real>(got.objective) - mine) <=
                      1e-9L * mine + kRounding * square);
          ASSERT_TRUE(mine - optimum <= static_cast<Real>(got.gap) + kRounding * square);
        }
      }
    }
  }
}

// Many tokens, few of them free: answered by the active set, and better than its tolerance.
TEST(ActiveSet, AnswersWhereFewWeightsAreFree) {
  for (const auto& [rows, cols] : {std::pair<Index, Index>{80, 40}, {60, 90}}) {
    for (const auto& [low, high] : {std::pair{1.0, 20.0}, {0.05, 20.0}, {1.0, 1.5}}) {
      const Problem p = attention_problem(rows, cols, 3 * cols, 0.7, false, 5);
      const std::optional<BoundedFit> got = active_set_fit(p.matrix, p.target, low, high, 1e-12);
      ASSERT_TRUE(got.has_value()) << rows << "x" << cols << " [" << low << ", " << high << "]";
      const Real l = static_cast<Real>(low);
      const Real h = static_cast<Real>(high);
      const Real optimum = reference::misfit(p.e, p.y, reference::bounded_fit(p.e, p.y, l, h));
      EXPECT_LE(std::fabs(reference::misfit(p.e, p.y, wide(got->w)) - optimum), 1e-8L * optimum);
      EXPECT_LE(got->gap, 1e-8 * got->objective);
    }
  }
}

// Equal columns that are both free, and an objective that is rounding: nothing to answer with.
TEST(ActiveSet, LeavesTheRestToTheInteriorPoint) {
  MatrixD e(1, 2);
  e.row(0)[0] = e.row(0)[1] = 1.0;
  EXPECT_FALSE(active_set_fit(e, std::vector<double>{4.0}, 1.0, 20.0, 1e-13).has_value());
  const Problem p = attention_problem(12, 40, 40, 0.7, false, 5);  // w = 1 is exact
  EXPECT_FALSE(active_set_fit(p.matrix, p.target, 0.05, 20.0, 1e-12).has_value());
}

TEST(BoundedLeastSquares, OfManyOptimaTakesOneNearOne) {
  // w1 + w2 = 4 has the answers (1, 3) to (3, 1); (2, 2) is nearest to (1, 1).
  MatrixD e(1, 2);
  e.row(0)[0] = e.row(0)[1] = 1.0;
  const BoundedFit got = bounded_least_squares(e, std::vector<double>{4.0}, 1.0, 20.0);
  EXPECT_NEAR(got.w[0], 2.0, 1e-5);
  EXPECT_NEAR(got.w[1], 2.0, 1e-5);
}

TEST(BoundedLeastSquares, NothingToFitLeavesOne) {
  MatrixD none(0, 3);
  EXPECT_EQ(bounded_least_squares(none, {}, 0.5, 3.0).w, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(bounded_least_squares(none, {}, 2.0, 3.0).w, (std::vector<double>{2, 2, 2}));
  MatrixD zero(2, 2);
  std::fill_n(zero.data(), 4, 0.0);
  const BoundedFit got = bounded_least_squares(zero, std::vector<double>{1.0, 2.0}, 0.0, 3.0);
  EXPECT_EQ(got.w, (std::vector<double>{1, 1}));
  EXPECT_EQ(got.objective, 5.0);
  const BoundedFit empty = bounded_least_squares(MatrixD(2, 0), std::vector<double>{1, 2}, 0, 3);
  EXPECT_TRUE(empty.w.empty());
  EXPECT_EQ(empty.objective, 5.0);
}

TEST(MatchingPursuit, EqualsTheReferenceStepByStep) {
  const double high = 1096.6331584284585;
  for (const auto& [rows, tokens] : {std::pair<Index, Index>{30, 40}, {8, 30}, {50, 12}}) {
    for (const double spread : {0.5, 2.0, 6.0}) {
      const Problem p = attention_problem(rows, tokens, tokens, spread, false, 11);
      const std::vector<Index> steps = reference::pursuit(p.e, p.y, std::min<Index>(tokens, 10),
                                                          1e-12L, static_cast<Real>(high));
      for (std::size_t count = 0; count <= steps.size(); ++count) {
        std::vector<Index> expected(steps.begin(),
                                    steps.begin() + static_cast<std::ptrdiff_t>(count));
        std::sort(expected.begin(), expected.end());
        // With as many columns as rows the residual is rounding, and so is what comes next.
        if (static_cast<Index>(count) > rows - 1) {
          break;
        }
        ASSERT_EQ(matching_pursuit(p.matrix, p.target, static_cast<Index>(count), 1e-12, high),
                  expected)
            << rows << "x" << tokens << " spread " << spread;
      }
    }
  }
}

TEST(MatchingPursuit, TiesGoToTheLowestAndAllCanBeChosen) {
  // Columns 1 and 3 are equal; so are 0 and 2.
  Problem p(2, 4);
  const double rows[2][4] = {{0.5, 1, 0.5, 1}, {0.25, 0.5, 0.25, 0.5}};
  for (Index i = 0; i < 2; ++i) {
    std::copy_n(rows[i], 4, p.matrix.row(i));
    p.target.push_back(3.0 * rows[i][0] + 0.1 * static_cast<double>(i));
  }
  p.finish();
  EXPECT_EQ(matching_pursuit(p.matrix, p.target, 1, 1e-12, 1e3), (std::vector<Index>{1}));
  EXPECT_EQ(matching_pursuit(p.matrix, p.target, 4, 1e-12, 1e3), (std::vector<Index>{0, 1, 2, 3}));
  EXPECT_TRUE(matching_pursuit(p.matrix, p.target, 0, 1e-12, 1e3).empty());
  // No row: all are equal, so the lowest.
  EXPECT_EQ(matching_pursuit(MatrixD(0, 4), {}, 2, 1e-12, 1e3), (std::vector<Index>{0, 1}));
}

// Bounds that bind: the reference's weights, and so its choices, differ from those of wide bounds.
TEST(MatchingPursuit, KeepsToItsBounds) {
  bool differs = false;
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    const Problem p = attention_problem(20, 30, 30, 1.0, false, seed);
    for (const Index count : {3, 6, 9}) {
      std::vector<Index> narrow = reference::pursuit(p.e, p.y, count, 0.5L, 2.0L);
      std::sort(narrow.begin(), narrow.end());
      ASSERT_EQ(matching_pursuit(p.matrix, p.target, count, 0.5, 2.0), narrow);
      differs = differs || matching_pursuit(p.matrix, p.target, count, 1e-12, 1e3) != narrow;
    }
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace kvbench::test_bounded_fit
