// balancekv as a method: sizes, weights, options, and its law as uniform sampling when the walk is
// a coin.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "algorithms/grid.hpp"
#include "method_checks.hpp"
#include "refusal.hpp"

namespace kvbench::test_balancekv {
namespace {

Compressed run(const char* method, const KvHead& head, const Given& given, std::uint64_t seed = 0,
               std::optional<Index> budget = {}) {
  return JobOf(method, head, positions(0, head.n()), {}).run(budget, given, seed);
}

TEST(BalanceKv, BudgetBetweenHalvingsTouchesOnlyTheOldest) {
  const KvHead head = make_head({.n = 100}, 2);
  // 100 -> 90: only the oldest 20 are halved; the other 80 keep weight 1.
  const Compressed c =
      run("balancekv", head, {{"select", "strict"}, {"tokens", "90"}, {"block", "16"}});
  ASSERT_EQ(c.held.tokens.size(), 90U);
  for (std::size_t i = 0; i < 90; ++i) {
    EXPECT_EQ(c.held.weight(i), c.held.tokens[i] < 20 ? 2.0F : 1.0F);
  }
  EXPECT_EQ(c.aux_bytes, 4 * 90);
}

// Far above the values a bias scales the whole kernel, which a greedy walk does not see. The
// largest that is allowed stays in float32's range.
TEST(BalanceKv, TheLargestBiasesAreInRange) {
  KvHead head = make_head({.n = 512}, 5);
  head.precision = Precision::float32;
  const auto kept = [&](const std::string& name, double part) {
    const std::vector<ParamSpec>& specs = find_method("balancekv").info.params;
    const double bias = part * std::ranges::find(specs, name, &ParamSpec::name)->max;
    return run("balancekv", head, {{name, fmt::format("{}", bias)}, {"T", "2"}}).held;
  };
  EXPECT_EQ(kept("value_bias", 1.0).tokens, kept("value_bias", 0.25).tokens);
  // All one sign would drop the older half of the tokens, twice.
  EXPECT_GT(weight_sum(kept("value_bias", 1.0)), 256.0);
  EXPECT_GT(weight_sum(kept("value_bias_rel", 1.0)), 256.0);
}

TEST(BalanceKv, BlocksAreEven) {
  testing_replay::expect_refusal([] { expand_algorithms({"balancekv:block=3;select=block"}); },
                                 "block: got 3, expected an even integer");
}

TEST(BalanceKv, WeightsAfterFullHalvings) {
  const KvHead head = make_head({.n = 128}, 3);
  const Compressed strict = run("balancekv", head, {{"select", "strict"}, {"T", "3"}});
  EXPECT_EQ(strict.held.tokens.size(), 16U);
  EXPECT_TRUE(strict.held.weights.empty());
  EXPECT_EQ(strict.held.common, 8.0F);
  EXPECT_EQ(strict.aux_bytes, 4);  // one weight is stored once
  const Compressed uniform = run("balancekv", head, {{"denominator", "uniform"}, {"T", "3"}});
  EXPECT_TRUE(uniform.denominator->same_keys);
  EXPECT_EQ(uniform.denominator->held.common, 8.0F);
  const Compressed rescaled = run("balancekv", head, {{"rescale", "true"}, {"T", "3"}});
  EXPECT_NEAR(weight_sum(rescaled.held), 128.0, 1e-4);  // float32 weights
}

TEST(BalanceKv, BudgetCountsWeightsAndSeparateKeys) {
  // Float32, d = dv = 8: a pair weighs 64 bytes.
  const KvHead head = make_head({.n = 128}, 3);
  const auto kept = [&](const char* denominator, Index budget) {
    return run("balancekv", head, {{"denominator", denominator}}, 0, budget).held.tokens.size();
  };
  EXPECT_EQ(kept("shared", 68 * 10), 10U);
  EXPECT_EQ(kept("shared", 68 * 11 - 1), 10U);
  EXPECT_EQ(kept("separate", (68 + 36) * 10), 10U);
  EXPECT_EQ(kept("shared", 0), 0U);
}

// With gamma = 0 the signs are fair coins; the minority, filled up at random, is a uniform subset.
// Both claims of the text: the same law of inclusion (chi-square over tokens) and the same law of
// a statistic of the set (two-sample Kolmogorov-Smirnov on the mean position), 200 seeds.
TEST(BalanceKv, AFairCoinIsUniformSampling) {
  const KvHead head = make_head({.n = 64}, 4);
  constexpr std::uint64_t kSeeds = 200;
  std::vector<double> included(64, 0.0);
  std::vector<double> walk_means, uniform_means;
  const auto mean = [](const Compressed& c) {
    return std::accumulate(c.held.tokens.begin(), c.held.tokens.end(), 0.0) /
           static_cast<double>(c.held.tokens.size());
  };
  const Given coin = settings("step=fixed;gamma=0;select=strict;fill=random;T=2;block=16").front();
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Compressed walk = run("balancekv", head, coin, seed);
    const Compressed uniform = run("uniform", head, {{"T", "2"}}, seed);
    ASSERT_EQ(walk.held.tokens.size(), uniform.held.tokens.size());
    EXPECT_EQ(walk.held.common, uniform.held.common);
    for (const Index i : walk.held.tokens) {
      included[i] += 1.0;
    }
    walk_means.push_back(mean(walk));
    uniform_means.push_back(mean(uniform));
  }
  // Inclusion counts have mean 50 and variance 200 * 1/4 * 3/4 = 37.5; without replacement their
  // standardised squares times 63/64 are chi-square with 63 degrees: 103.4 at level 0.001.
  double chi = 0.0;
  for (const double c : included) {
    chi += (c - 50.0) * (c - 50.0) / 37.5;
  }
  EXPECT_LT(chi * 63.0 / 64.0, 103.4);
  // Kolmogorov-Smirnov at level 0.001: 1.95 sqrt(2 / 200) = 0.195.
  std::sort(walk_means.begin(), walk_means.end());
  std::sort(uniform_means.begin(), uniform_means.end());
  double distance = 0.0;
  for (const double x : walk_means) {
    const auto below = [&](const std::vector<double>& v) {
      return static_cast<double>(std::upper_bound(v.begin(), v.end(), x) - v.begin()) / kSeeds;
    };
    distance = std::max(distance, std::abs(below(walk_means) - below(uniform_means)));
  }
  EXPECT_LT(distance, 0.195);
}

// The walk does what it is for: signed sums of the kernel's features are smaller than a coin's.
TEST(BalanceKv, ErrorOfTheWeightedSumIsBelowUniform) {
  const KvHead head = make_head({.n = 256, .key_norm = 2.0}, 6);
  const auto error = [&](const Compressed& c) {
    double moved = 0.0;
    for (Index j = 0; j < 32; ++j) {
      for (Index t = 0; t < 8; ++t) {
        double diff = 0.0;
        const auto term = [&](Index i) {
          return std::exp(slow_logit(head, head.k.row(i), head.q[0].row(j))) *
                 static_cast<double>(head.v.row(i)[t]);
        };
        for (Index i = 0; i < head.n(); ++i) {
          diff -= term(i);
        }
        for (std::size_t i = 0; i < c.held.tokens.size(); ++i) {
          diff += static_cast<double>(c.held.weight(i)) * term(c.held.tokens[i]);
        }
        moved += diff * diff;
      }
    }
    return std::sqrt(moved);
  };
  double walk = 0.0;
  double uniform = 0.0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    walk += error(
        run("balancekv", head, settings("step=self;gamma=16;select=strict;T=1").front(), seed));
    uniform += error(run("uniform", head, {{"T", "1"}}, seed));
  }
  EXPECT_LT(walk, 0.8 * uniform);
}

}  // namespace
}  // namespace kvbench::test_balancekv
