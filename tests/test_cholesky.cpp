// The blocked Cholesky factor and its solves against the textbook's loops: equal bits, whatever the
// instruction set of the build; small residuals; what is not positive definite is said to be so.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "attention/cholesky.hpp"
#include "attention/inner_products.hpp"
#include "core/vector_sums.hpp"
#include "reference/cholesky.hpp"

namespace kvbench::test_cholesky {
namespace {

constexpr Index kSizes[] = {0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 72, 79, 127, 128, 129, 200, 511};

MatrixD random_matrix(Index rows, Index cols, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, 1.0);
  MatrixD out(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    out.data()[i] = normal(generator);
  }
  return out;
}

MatrixD positive_definite(Index n) {
  const MatrixD x = random_matrix(n, n + 3, 5);
  MatrixD x_t;
  MatrixD out;
  transpose(x, x_t);
  inner_products(x, x_t, out);
  return out;
}

double largest(const MatrixD& m) {
  double out = 0.0;
  for (Index i = 0; i < m.rows() * m.cols(); ++i) {
    out = std::max(out, std::abs(m.data()[i]));
  }
  return out;
}

TEST(Cholesky, FactorHasTheBitsOfTheTextbook) {
  for (const Index n : kSizes) {
    const MatrixD a = positive_definite(n);
    MatrixD u = a;
    for (Index i = 0; i < n; ++i) {
      std::fill_n(u.row(i), i, std::numeric_limits<double>::quiet_NaN());  // is not read
    }
    ASSERT_TRUE(factor_cholesky(u)) << n;
    bool positive = false;
    const MatrixD expected = reference::cholesky(a, positive);
    ASSERT_TRUE(positive);
    double worst = 0.0;
    for (Index i = 0; i < n; ++i) {
      for (Index j = i; j < n; ++j) {
        ASSERT_EQ(u.row(i)[j], expected.row(i)[j]) << n << ": " << i << ", " << j;
        double sum = 0.0;
        for (Index t = 0; t <= i; ++t) {
          sum += u.row(t)[i] * u.row(t)[j];
        }
        worst = std::max(worst, std::abs(sum - a.row(i)[j]));
      }
    }
    EXPECT_LE(worst, 1e-14 * largest(a)) << n;
  }
}

TEST(Cholesky, SolvesHaveTheBitsOfTheTextbook) {
  for (const Index n : kSizes) {
    MatrixD u = positive_definite(n);
    for (Index i = 0; i < n; ++i) {
      u.row(i)[i] += static_cast<double>(n);  // well conditioned
    }
    const MatrixD a = u;
    ASSERT_TRUE(factor_cholesky(u));
    for (const Index sides : {0, 1, 2, 8, 16, 33}) {
      const MatrixD b = random_matrix(n, sides, 9);
      const MatrixD half = reference::solved_lower(u, b);
      const MatrixD whole = reference::solved(u, b);
      MatrixD x = b;
      solve_lower(u, x);
      ASSERT_TRUE(std::equal(x.data(), x.data() + n * sides, half.data())) << n << ", " << sides;
      x = b;
      solve_cholesky(u, x);
      ASSERT_TRUE(std::equal(x.data(), x.data() + n * sides, whole.data())) << n << ", " << sides;
      for (Index c = 0; c < sides; ++c) {
        std::vector<double> one;
        for (Index i = 0; i < n; ++i) {
          one.push_back(b.row(i)[c]);
        }
        solve_cholesky(u, one);
        for (Index i = 0; i < n; ++i) {
          ASSERT_EQ(one[i], whole.row(i)[c]) << n << ", " << sides;
          double left = -b.row(i)[c];
          for (Index t = 0; t < n; ++t) {
            left += a.row(i)[t] * one[t];
          }
          ASSERT_LE(std::abs(left), 1e-12) << n;
        }
      }
    }
  }
}

TEST(Cholesky, SaysWhatIsNotPositiveDefinite) {
  for (const Index n : {1, 2, 17, 64, 65, 130}) {
    for (const Index place : {Index{0}, n / 2, n - 1}) {
      for (const double pivot : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()}) {
        MatrixD a(n, n);
        std::fill_n(a.data(), n * n, 0.0);
        for (Index i = 0; i < n; ++i) {
          a.row(i)[i] = i == place ? pivot : 2.0;
        }
        EXPECT_FALSE(factor_cholesky(a)) << n << ", " << place << ", " << pivot;
      }
    }
  }
  MatrixD equal(2, 2);  // two equal columns
  std::fill_n(equal.data(), 4, 1.0);
  EXPECT_FALSE(factor_cholesky(equal));
}

// In 16 lanes that are joined as a tree, by plain loops.
TEST(VectorSums, KeepTheirOrder) {
  for (const Index n : {0, 1, 15, 16, 17, 31, 32, 500}) {
    const MatrixD a = random_matrix(1, n, 1);
    const MatrixD b = random_matrix(1, n, 2);
    double products[16] = {};
    double sums[16] = {};
    for (Index t = 0; t < n; ++t) {
      products[t % 16] = std::fma(a.data()[t], b.data()[t], products[t % 16]);
      sums[t % 16] += a.data()[t];
    }
    for (Index half : {8, 4, 2, 1}) {
      for (Index l = 0; l < half; ++l) {
        products[l] += products[l + half];
        sums[l] += sums[l + half];
      }
    }
    EXPECT_EQ(dot(a.data(), b.data(), n), products[0]);
    EXPECT_EQ(sum(a.data(), n), sums[0]);
  }
}

}  // namespace
}  // namespace kvbench::test_cholesky
