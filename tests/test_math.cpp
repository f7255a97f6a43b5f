#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "core/math.hpp"

namespace kvbench::test_math {
namespace {

// One unit in the last place of the result that is nearest to the truth.
template <class T, class Truth>
void expect_within_ulp(T got, Truth truth, T x) {
  const T nearest = std::abs(static_cast<T>(truth));
  const T ulp = std::nextafter(nearest, std::numeric_limits<T>::infinity()) - nearest;
  ASSERT_TRUE(std::abs(static_cast<Truth>(got) - truth) <= static_cast<Truth>(ulp)) << x;
}

// Finite in [low, high].
template <class T>
void expect_ends(T low, T high) {
  const T inf = std::numeric_limits<T>::infinity();
  EXPECT_EQ(exp_shared(T{0}), T{1});
  EXPECT_EQ(exp_shared(-inf), T{0});
  EXPECT_EQ(exp_shared(low - T{0.5}), T{0});
  EXPECT_GT(exp_shared(low), T{0});
  EXPECT_EQ(exp_shared(inf), inf);
  EXPECT_EQ(exp_shared(high + T{0.5}), inf);
  EXPECT_TRUE(std::isfinite(exp_shared(high)));
  EXPECT_TRUE(std::isnan(exp_shared(std::numeric_limits<T>::quiet_NaN())));
}

TEST(ExpShared, WithinOneUlpOfLongDouble) {
  std::mt19937_64 generator(1);
  std::uniform_real_distribution<double> wide(-708.0, 709.0);
  std::uniform_real_distribution<double> narrow(-2.0, 2.0);
  for (int i = 0; i < 400000; ++i) {
    const double x = i % 2 == 0 ? wide(generator) : narrow(generator);
    expect_within_ulp(exp_shared(x), std::exp(static_cast<long double>(x)), x);
  }
}

TEST(ExpShared, EndsAndSpecialValues) {
  expect_ends<double>(-708.0, 709.0);
  expect_ends<float>(-87.0F, 88.0F);
}

// Every float32 of its range would take minutes: a step of 37 of them, and all around 0.
TEST(ExpShared, Float32WithinOneUlpOfFloat64) {
  const auto expect_close = [](float x) {
    expect_within_ulp(exp_shared(x), std::exp(static_cast<double>(x)), x);
  };
  for (const float end : {-87.0F, 88.0F}) {
    const auto last = std::bit_cast<std::uint32_t>(end);
    for (std::uint32_t bits = last & 0x80000000U; bits <= last; bits += 37) {
      expect_close(std::bit_cast<float>(bits));
    }
    expect_close(end);
  }
}

// Arguments of every size, near 0 on both sides, near -1 and where 1 + x crosses a power of 2 or
// sqrt(2) times one.
TEST(Log1pShared, WithinOneUlpOfLongDouble) {
  std::mt19937_64 generator(2);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  const auto expect_close = [](double x) {
    expect_within_ulp(log1p_shared(x), std::log1p(static_cast<long double>(x)), x);
  };
  for (int i = 0; i < 200000; ++i) {
    const double size = std::pow(10.0, 324.0 * unit(generator) - 24.0);
    expect_close(std::min(size, 1e300));
    expect_close(unit(generator) - 1.0 + 1e-17);
    expect_close(3.0 * unit(generator) - 1.0);
    expect_close(-std::pow(10.0, -20.0 * unit(generator) - 1e-9));
    expect_close(-1.0 + std::pow(10.0, -15.0 * unit(generator) - 1e-9));
    const int k = static_cast<int>(generator() % 60);
    const double edge = std::ldexp(i % 2 == 0 ? 1.0 : std::sqrt(2.0), k - 1);
    expect_close(edge * (1.0 + 1e-6 * (unit(generator) - 0.5)) - 1.0);
  }
  for (const double edge : {-0.2928, 0.4142, 1.0, 9007199254740992.0}) {
    expect_close(std::nextafter(edge, -2.0));
    expect_close(edge);
    expect_close(std::nextafter(edge, 1e300));
  }
  for (const double tiny : {5e-324, 1e-310, 2.3e-308, 1e-300, 1e-17}) {
    EXPECT_EQ(log1p_shared(tiny), tiny);
    EXPECT_EQ(log1p_shared(-tiny), -tiny);
  }
}

TEST(Log1pShared, EndsAndSpecialValues) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(log1p_shared(0.0), 0.0);
  EXPECT_FALSE(std::signbit(log1p_shared(0.0)));
  EXPECT_EQ(log1p_shared(-0.0), 0.0);
  EXPECT_EQ(log1p_shared(-1.0), -inf);
  EXPECT_EQ(log1p_shared(inf), inf);
  EXPECT_TRUE(std::isfinite(log1p_shared(std::nextafter(-1.0, 0.0))));
  EXPECT_TRUE(std::isfinite(log1p_shared(1e300)));
  EXPECT_TRUE(std::isnan(log1p_shared(-1.5)));
  EXPECT_TRUE(std::isnan(log1p_shared(-inf)));
  EXPECT_TRUE(std::isnan(log1p_shared(std::numeric_limits<double>::quiet_NaN())));
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
}  // namespace kvbench::test_math
