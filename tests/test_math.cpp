#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/math.hpp"

namespace kvbench {
namespace {

TEST(ExpShared, WithinOneUlpOfLongDouble) {
  std::mt19937_64 generator(1);
  std::uniform_real_distribution<double> wide(-708.0, 709.0);
  std::uniform_real_distribution<double> narrow(-2.0, 2.0);
  for (int i = 0; i < 400000; ++i) {
    const double x = i % 2 == 0 ? wide(generator) : narrow(generator);
    const long double truth = std::exp(static_cast<long double>(x));
    const double nearest = static_cast<double>(truth);
    const double ulp = std::nextafter(nearest, std::numeric_limits<double>::infinity()) - nearest;
    ASSERT_TRUE(std::abs(static_cast<long double>(exp_shared(x)) - truth) <= 1.0L * ulp) << x;
  }
}

TEST(ExpShared, EndsAndSpecialValues) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(exp_shared(0.0), 1.0);
  EXPECT_EQ(exp_shared(-inf), 0.0);
  EXPECT_EQ(exp_shared(-708.5), 0.0);
  EXPECT_GT(exp_shared(-708.0), 0.0);
  EXPECT_EQ(exp_shared(inf), inf);
  EXPECT_EQ(exp_shared(709.5), inf);
  EXPECT_TRUE(std::isfinite(exp_shared(709.0)));
  EXPECT_TRUE(std::isnan(exp_shared(std::numeric_limits<double>::quiet_NaN())));
}

TEST(ScaledExp, NeverNanAndPullsBackIntoRange) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(scaled_exp(0.0, inf), 0.0);
  EXPECT_EQ(scaled_exp(-3.0, inf), -inf);
  EXPECT_EQ(scaled_exp(3.0, -inf), 0.0);
  // exp(800) is no float64, 1e-100 * exp(800) is.
  const double expected = static_cast<double>(1e-100L * std::exp(800.0L));
  EXPECT_NEAR(scaled_exp(1e-100, 800.0) / expected, 1.0, 1e-14);
}

}  // namespace
}  // namespace kvbench
