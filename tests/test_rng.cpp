#include <Random123/philox.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/rng.hpp"

namespace kvbench::test_rng {
namespace {

// Known answers of Random123's own test vectors (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  const auto zero = r123::Philox4x32()({{0, 0, 0, 0}}, {{0, 0}});
  EXPECT_EQ(zero[0], 0x6627e8d5U);
  EXPECT_EQ(zero[1], 0xe169c58dU);
  EXPECT_EQ(zero[2], 0xbc57ac4cU);
  EXPECT_EQ(zero[3], 0x9b00dbd8U);
  const RngStream stream(0, 0, 0);
  EXPECT_EQ(stream.word(0), 0xe169c58d6627e8d5ULL);
  EXPECT_EQ(stream.word(1), 0x9b00dbd8bc57ac4cULL);
}

TEST(Rng, EverythingInTheKeyMatters) {
  const HeadId head{"p", 3, 1};
  std::set<std::uint64_t> first;
  const auto add = [&](const Rng& rng, const char* purpose) {
    first.insert(rng.stream(purpose).word(0));
  };
  add(Rng(0, head, "a"), "walk");
  add(Rng(1, head, "a"), "walk");
  add(Rng(0, {"q", 3, 1}, "a"), "walk");
  add(Rng(0, {"p", 4, 1}, "a"), "walk");
  add(Rng(0, {"p", 3, 2}, "a"), "walk");
  add(Rng(0, head, "b"), "walk");
  add(Rng(0, head, "a"), "fill");
  EXPECT_EQ(first.size(), 7U);
  EXPECT_EQ(Rng(0, head, "a").stream("walk").word(9), Rng(0, head, "a").stream("walk").word(9));
}

TEST(Rng, RandomAccessEqualsSequence) {
  const RngStream at(7, 1, 2);
  RngStream sequence = at;
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sequence.next_word(), at.word(i));
  }
}

// Chi-square against uniform, 99 degrees of freedom: above 148.2 with probability 0.001.
TEST(Rng, UniformAndBelowAreUniform) {
  RngStream stream(42, 0, 0);
  const int draws = 100000;
  std::vector<double> uniform(100);
  std::vector<double> below(100);
  for (int i = 0; i < draws; ++i) {
    const double u = stream.next_uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++uniform[static_cast<std::size_t>(u * 100)];
    ++below[stream.next_below(100)];
  }
  for (const auto& counts : {uniform, below}) {
    double chi = 0.0;
    for (const double c : counts) {
      chi += (c - draws / 100.0) * (c - draws / 100.0) / (draws / 100.0);
    }
    EXPECT_LT(chi, 148.2);
  }
}

// Every 3-subset of 6 (20 of them) equally likely: 19 degrees of freedom, 43.8 at level 0.001.
// 2-subsets of 20 (190) take the other code path: 189 degrees, 255.6 at level 0.001.
TEST(Rng, SamplingWithoutReplacementIsUniformOverSubsets) {
  for (const auto& [n, k, subsets, bound] :
       {std::tuple{Index{6}, Index{3}, 20, 43.8}, {Index{20}, Index{2}, 190, 255.6}}) {
    RngStream stream(5, 0, 0);
    std::map<std::vector<Index>, int> seen;
    const int draws = 200 * subsets;
    for (int i = 0; i < draws; ++i) {
      const auto s = sample_without_replacement(stream, n, k);
      ASSERT_EQ(static_cast<Index>(s.size()), k);
      ASSERT_TRUE(std::adjacent_find(s.begin(), s.end(), std::greater_equal<>()) == s.end());
      ++seen[s];
    }
    ASSERT_EQ(static_cast<int>(seen.size()), subsets);
    double chi = 0.0;
    for (const auto& [set, count] : seen) {
      chi += (count - 200.0) * (count - 200.0) / 200.0;
    }
    EXPECT_LT(chi, bound);
  }
}

TEST(Rng, SamplingEnds) {
  RngStream stream(5, 0, 0);
  EXPECT_TRUE(sample_without_replacement(stream, 0, 0).empty());
  EXPECT_TRUE(sample_without_replacement(stream, 9, 0).empty());
  EXPECT_EQ(sample_without_replacement(stream, 4, 4), (std::vector<Index>{0, 1, 2, 3}));
}

// Box and Muller's formula on the stream's own uniforms, in long double.
TEST(RngNormal, IsTheTransformOfTwoUniforms) {
  constexpr long double kRounding = 1e-14L;  // of float64's log and cosine, |x| up to 9
  const long double two_pi = 2 * std::acos(-1.0L);
  const RngStream stream = Rng(3, {"p", 1, 2}, "a").stream("sketch");
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const long double u = stream.uniform(2 * i);
    const long double v = stream.uniform(2 * i + 1);
    const long double x = std::sqrt(-2 * std::log(1 - u)) * std::cos(two_pi * v);
    ASSERT_TRUE(std::abs(stream.normal(i) - x) <= kRounding) << i;
  }
}

TEST(RngNormal, HasTheMomentsAndTailsOfANormal) {
  const RngStream stream = Rng(4, {"p", 1, 2}, "a").stream("sketch");
  constexpr int kCount = 200000;
  double sum[5] = {};
  int beyond = 0;
  double lag = 0.0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = stream.normal(i);
    double power = 1.0;
    for (double& s : sum) {
      s += power / kCount;
      power *= x;
    }
    beyond += std::abs(x) > 1.959963984540054 ? 1 : 0;
    lag += x * stream.normal(i + 1) / kCount;
  }
  // Five standard errors: sqrt(var / kCount) with var 1, 2, 15, 96 of x, x^2, x^3, x^4.
  const double error = 5.0 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum[1], 0.0, error);
  EXPECT_NEAR(sum[2], 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(sum[3], 0.0, error * std::sqrt(15.0));
  EXPECT_NEAR(sum[4], 3.0, error * std::sqrt(96.0));
  EXPECT_NEAR(static_cast<double>(beyond) / kCount, 0.05, error * std::sqrt(0.05 * 0.95));
  EXPECT_NEAR(lag, 0.0, error);
}

}  // namespace
}  // namespace kvbench::test_rng
