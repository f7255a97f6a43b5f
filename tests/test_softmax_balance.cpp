// The walk against its definition in long double, whose exponent range needs no shift.
#include <gtest/gtest.h>

#include "attention/softmax_balance.hpp"
#include "make_head.hpp"
#include "reference/reference.hpp"

namespace kvbench::test_softmax_balance {
namespace {

struct Case {
  WalkStep step;
  double gamma;
  bool center;
  double bias;
  Index d;
  Index block;
  double key_norm;
  // Tolerance of a probability in float64. An exponent e carries a rounding of about |e| * 2^-52 *
  // d / 4, and gamma / G_jj can multiply y by much more than 1.
  double tolerance;
  double tolerance32;  // the same in float32
  bool plain_bias = false;
  Index padded = 0;
};

const Case kCases[] = {
    {WalkStep::theory, 1.0, true, 0.0, 8, 64, 3.0, 1e-12, 3e-6},
    {WalkStep::fixed, 1.0, true, 0.0, 8, 64, 3.0, 1e-12, 3e-6},
    {WalkStep::fixed, 8.0, false, 0.3, 5, 33, 6.0, 1e-11, 1e-5},
    {WalkStep::fixed, 0.0, true, 0.0, 8, 64, 3.0, 0.0, 0.0},
    {WalkStep::self, 1.0, true, 0.0, 8, 64, 3.0, 1e-11, 1e-5},
    {WalkStep::self, 4.0, true, 0.5, 64, 256, 6.0, 1e-10, 1e-4},
    {WalkStep::greedy, 1.0, true, 0.0, 64, 256, 6.0, 0.0, 0.0},
    {WalkStep::repo, 4.0, true, 0.025, 64, 128, 3.0, 1e-11, 1e-4},
    // Norm 100 at d = 128: s|k|^2 = 884, past float64's exp; long double's reaches 11355.
    {WalkStep::theory, 1.0, false, 0.0, 128, 64, 100.0, 1e-10, 1e-4},
    {WalkStep::fixed, 1.0, false, 0.0, 128, 64, 100.0, 1e-10, 1e-4},
    {WalkStep::self, 1.0, true, 0.1, 128, 64, 100.0, 1e-8, 1e-3},
    {WalkStep::repo, 4.0, false, 0.025, 128, 64, 100.0, 1e-8, 1e-3},
    {WalkStep::greedy, 1.0, false, 0.0, 128, 64, 100.0, 0.0, 0.0},
    {WalkStep::repo, 4.0, true, 0.025, 64, 128, 3.0, 1e-11, 1e-4, true, 256},
    {WalkStep::fixed, 8.0, true, 3.0, 5, 33, 6.0, 1e-11, 1e-5, true, 64},
    {WalkStep::self, 4.0, true, 0.5, 64, 100, 6.0, 1e-10, 1e-4, true, 0},
};

class WalkTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Options, WalkTest, ::testing::ValuesIn(kCases));

// A draw within the tolerance of its probability may give either sign, and from there on the walks
// are two: no more of that seed's is compared. Returns how many tokens were.
template <class T>
Index expect_reference(const Case& c, double tolerance) {
  Index compared = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    const KvHead head =
        make_head({.n = c.block, .d = c.d, .key_norm = c.key_norm, .key_offset = 0.3}, seed);
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    std::vector<double> uniforms, weights;
    reference::Vec long_weights;
    for (Index i = 0; i < c.block; ++i) {
      uniforms.push_back(uniform(generator));
      weights.push_back(std::exp2(static_cast<double>(generator() % 4)));
      long_weights.push_back(weights.back());
    }
    WalkOptions options{.step = c.step,
                        .gamma = c.gamma,
                        .scale = head.scale,
                        .value_bias = c.bias,
                        .plain_bias = c.plain_bias,
                        .center = c.center,
                        .padded = c.padded};
    BasicMatrix<T> keys, values;
    gather_rows(head.k, positions(0, c.block), keys);
    gather_rows(head.v, positions(0, c.block), values);
    std::vector<std::int8_t> signs(uniforms.size());
    std::vector<double> p(uniforms.size());
    WalkNumbers<T> scratch;
    const WalkCounts counts =
        softmax_balance(keys, values, weights, options, uniforms, signs, p, scratch);

    const reference::WalkReference t{
        .step = static_cast<reference::ReferenceStep>(c.step),  // of the same names in order
        .gamma = c.gamma,
        .scale = head.scale,
        .bias = c.bias,
        .center = c.center,
        .plain_bias = c.plain_bias,
        .padded = static_cast<std::size_t>(c.padded)};
    const reference::WalkResult slow = reference::walk(
        reference::rows_of(head.k), reference::rows_of(head.v), long_weights, t, uniforms);
    int saturated = 0;
    int coin = 0;
    std::size_t i = 0;
    for (; i < p.size(); ++i) {
      const auto expected = static_cast<double>(slow.p[i]);
      EXPECT_TRUE(std::isfinite(p[i]));
      EXPECT_TRUE(std::abs(p[i] - expected) <= tolerance) << i << ": " << p[i] << " " << expected;
      if (tolerance > 0.0 && std::abs(uniforms[i] - expected) <= tolerance) {
        break;
      }
      EXPECT_EQ(signs[i], slow.sign[i]) << i;
      if (::testing::Test::HasFailure()) {
        return compared;
      }
      saturated += slow.p[i] <= 0 || slow.p[i] >= 1 ? 1 : 0;
      coin += std::abs(expected - 0.5) < 0.01 ? 1 : 0;
      ++compared;
    }
    EXPECT_EQ(counts.steps, c.block);
    if (i == p.size()) {
      EXPECT_EQ(counts.failures, slow.failures);
      EXPECT_EQ(counts.saturated, saturated);
      EXPECT_EQ(counts.coin, coin);
    }
  }
  return compared;
}

TEST_P(WalkTest, EqualsReference) {
  const Case& c = GetParam();
  EXPECT_EQ(expect_reference<double>(c, c.tolerance), 6 * c.block);
}

TEST_P(WalkTest, InFloat32TooAsFarAsItsRoundingGoes) {
  const Case& c = GetParam();
  EXPECT_GT(expect_reference<float>(c, c.tolerance32), 5 * c.block);
}

template <class T>
WalkCounts run(const KvHead& head, WalkOptions options, std::vector<double>& p,
               std::vector<std::int8_t>& signs) {
  const Index n = head.n();
  BasicMatrix<T> keys, values;
  gather_rows(head.k, positions(0, n), keys);
  gather_rows(head.v, positions(0, n), values);
  const std::vector<double> weights(n, 1.0);
  const std::vector<double> uniforms(n, 0.25);
  p.assign(uniforms.size(), 0.0);
  signs.assign(uniforms.size(), 0);
  WalkNumbers<T> scratch;
  options.scale = head.scale;
  return softmax_balance(keys, values, weights, options, uniforms, signs, p, scratch);
}

template <class T>
void expect_probabilities(double largest) {
  std::vector<double> p;
  std::vector<std::int8_t> signs;
  HeadShape shape{.n = 40, .d = 128};
  for (const double key_norm : {0.0, 1e-30, 100.0, 1e4, 1e15}) {
    for (const double value_norm : {0.0, 1e-30, 1.0, largest}) {
      shape.key_norm = key_norm;
      shape.value_norm = value_norm;
      const KvHead head = make_head(shape, 3);
      for (const WalkStep step :
           {WalkStep::theory, WalkStep::fixed, WalkStep::self, WalkStep::greedy, WalkStep::repo}) {
        for (const double gamma : {0.0, 1.0, 1e300}) {
          for (const bool center : {false, true}) {
            WalkOptions options{.step = step, .gamma = gamma, .center = center};
            run<T>(head, options, p, signs);
            for (std::size_t i = 0; i < p.size(); ++i) {
              ASSERT_TRUE(p[i] >= 0.0 && p[i] <= 1.0) << key_norm << " " << value_norm;
              ASSERT_TRUE(signs[i] == 1 || signs[i] == -1);
            }
          }
        }
      }
    }
  }
}

TEST(Walk, NoInputInRangeGivesInfOrNan) {
  expect_probabilities<double>(1e30);
  expect_probabilities<float>(1e15);
}

// |y| <= nb R^2 by Cauchy-Schwarz and c = 30 ln(25600) = 304 > 256: the theory's walk cannot fail,
// and every P stays within nb / 2c of 1/2, here with the worst input there is: identical tokens.
TEST(Walk, TheoryIsACoinAt256) {
  KvHead head = make_head({.n = 256}, 5);
  repeat_first_row(head.k);
  repeat_first_row(head.v);
  std::vector<double> p;
  std::vector<std::int8_t> signs;
  WalkOptions options{.step = WalkStep::theory, .center = false};
  const WalkCounts counts = run<double>(head, options, p, signs);
  EXPECT_EQ(counts.failures, 0);
  EXPECT_EQ(counts.saturated, 0);
  const double bound = 256.0 / (2.0 * 30.0 * std::log(256.0 / 0.01));
  for (const double x : p) {
    EXPECT_LE(std::abs(x - 0.5), bound);
  }
}

TEST(Walk, GreedyAlternatesOnIdenticalTokens) {
  KvHead head = make_head({.n = 32}, 5);
  repeat_first_row(head.k);
  repeat_first_row(head.v);
  std::vector<double> p;
  std::vector<std::int8_t> signs;
  WalkOptions options{.step = WalkStep::greedy};
  const WalkCounts counts = run<double>(head, options, p, signs);
  for (std::size_t i = 0; i < 32; i += 2) {
    EXPECT_EQ(p[i], 0.5);  // the sum is exactly 0 again
    EXPECT_EQ(signs[i] + signs[i + 1], 0);
  }
  EXPECT_EQ(counts.coin, 16);
  EXPECT_EQ(counts.saturated, 16);
}

}  // namespace
}  // namespace kvbench::test_softmax_balance
